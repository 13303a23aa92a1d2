"""The settings of s3a reach tasks, which have no Hadoop: from the session to the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import fs

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.hadoop import Hadoop
from wallaroo_spark.storage.locations import PortableLocation, open_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.no_cover]

KEYS = {"access.key": "sesame", "secret.key": "open-mellon"}
TAKEN = {"access_key": "sesame", "secret_key": "open-mellon"}
TOKEN = {"session.token": "for-an-hour"}
PROVIDER = "org.apache.hadoop.fs.s3a."


def settings_of(spark: SparkSession, told: dict[str, str]) -> dict[str, Any]:
    """The settings that tasks get for the bucket ``orders``."""
    session = spark.newSession()
    for name, value in told.items():
        session.conf.set(f"fs.s3a.{name}", value)
    return Hadoop(session).s3_settings("orders")


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(KEYS, TAKEN, id="keys"),
        pytest.param({"access.key": "sesame"}, {}, id="half of the keys"),
        pytest.param(TOKEN, {}, id="a token without keys"),
        pytest.param(
            {"access.key": "general", "secret.key": "general", **{f"bucket.orders.{k}": v for k, v in KEYS.items()}},
            TAKEN,
            id="keys of the bucket",
        ),
        pytest.param({f"bucket.bills.{k}": v for k, v in KEYS.items()}, {}, id="keys of another bucket"),
        pytest.param(KEYS | TOKEN, TAKEN | {"session_token": "for-an-hour"}, id="temporary"),
        pytest.param(
            {**KEYS, **TOKEN, "aws.credentials.provider": f"{PROVIDER}TemporaryAWSCredentialsProvider"},
            TAKEN | {"session_token": "for-an-hour"},
            id="temporary only",
        ),
        pytest.param(
            {**KEYS, **TOKEN, "aws.credentials.provider": f"{PROVIDER}SimpleAWSCredentialsProvider"},
            TAKEN,
            id="a token that nobody asks for",
        ),
        pytest.param(
            {**KEYS, "aws.credentials.provider": f"{PROVIDER}auth.IAMInstanceCredentialsProvider"},
            {},
            id="keys that nobody asks for",
        ),
        pytest.param(
            {**KEYS, "aws.credentials.provider": f"{PROVIDER}AnonymousAWSCredentialsProvider"},
            {"anonymous": True},
            id="anonymous",
        ),
        pytest.param(
            {"endpoint": "http://127.0.0.1:9000/", "path.style.access": "true", "endpoint.region": "north"},
            {"endpoint_override": "127.0.0.1:9000", "scheme": "http", "region": "north"},
            id="a server of one's own",
        ),
        pytest.param(
            {"endpoint": "store.example.com", "connection.ssl.enabled": "false"},
            {"endpoint_override": "store.example.com", "scheme": "http", "force_virtual_addressing": True},
            id="buckets as hosts, without TLS",
        ),
        pytest.param(
            {"endpoint": "s3.eu-west-1.amazonaws.com"},
            {
                "endpoint_override": "s3.eu-west-1.amazonaws.com",
                "region": "eu-west-1",
                "force_virtual_addressing": True,
            },
            id="a region's endpoint",
        ),
        pytest.param(
            {"endpoint": "s3.amazonaws.com", "bucket.orders.endpoint.region": "eu-west-1"},
            {"region": "eu-west-1"},
            id="the general endpoint",
        ),
    ],
)
def test_settings_of_s3a_become_those_of_tasks(
    spark: SparkSession, told: dict[str, str], expected: dict[str, Any]
) -> None:
    found = settings_of(spark, told)
    assert found == {"scheme": "https"} | expected
    assert fs.S3FileSystem(**found | {"region": found.get("region", "us-east-1")}).type_name == "s3"


@pytest.mark.parametrize("of", ["bucket.orders.", ""])
def test_keys_in_a_store_of_hadoop_s_are_found(spark: SparkSession, tmp_path: Path, of: str) -> None:
    store = f"localjceks://file{tmp_path}/keys.jceks"
    session = spark.newSession()
    session.conf.set("hadoop.security.credential.provider.path", store)
    hadoop = Hadoop(session)
    (provider,) = hadoop.jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(hadoop.conf)
    for name, value in KEYS.items():
        characters = hadoop.gateway.new_array(hadoop.jvm.char, len(value))
        for place, character in enumerate(value):
            characters[place] = character
        provider.createCredentialEntry(f"fs.s3a.{of}{name}", characters)
    provider.flush()
    assert hadoop.s3_settings("orders") == {"scheme": "https"} | TAKEN
    told = {f"{of}security.credential.provider.path": store}
    assert settings_of(spark, told) == {"scheme": "https"} | TAKEN


class Door(ThreadingHTTPServer):
    """A server that has nothing, and keeps the paths and headers that it is asked with."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _Nothing)


class _Nothing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Door)
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""


@pytest.fixture
def door() -> Iterator[Door]:
    with Door() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_task_shows_temporary_credentials_to_the_server_that_spark_was_told_of(
    spark: SparkSession, door: Door
) -> None:
    there = {
        "endpoint": f"http://127.0.0.1:{door.server_port}",
        "endpoint.region": "north",
        "path.style.access": "true",
    }
    place = PortableLocation("s3a://orders/checkpoint", settings_of(spark, {**KEYS, **TOKEN, **there}))
    with pytest.raises(CheckpointError):
        SidecarFolder(place, "sinks").read("7.json")
    path, headers = door.asked[0]
    assert path.startswith("/orders/checkpoint/_wallaroo/sinks/7.json")
    assert headers["x-amz-security-token"] == "for-an-hour"
    credential = headers["authorization"].partition("Credential=")[2].split("/")
    assert (credential[0], credential[2:4]) == ("sesame", ["north", "s3"])


def test_the_region_of_a_bucket_is_looked_up_when_it_is_not_set(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(bucket: str) -> str:
        asked.append(bucket)
        return "eu-north-1"

    monkeypatch.setattr(fs, "resolve_s3_region", answer)
    for endpoint in ("", "s3.amazonaws.com"):
        settings = settings_of(spark, {**KEYS, "endpoint": endpoint})
        assert open_location(PortableLocation("s3a://orders/checkpoint", settings)).filesystem.region == "eu-north-1"
    named = settings_of(spark, {**KEYS, "endpoint.region": "north"})
    assert open_location(PortableLocation("s3a://orders/checkpoint", named)).filesystem.region == "north"
    assert asked == ["orders", "orders"]
