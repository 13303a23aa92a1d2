"""Bridges and TLS: each source's real server behind certificates, those that are right and those that are not.

A server's TLS is ended by a program of this test, so that one server serves with many certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import socket
import ssl
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gmqtt
import psycopg
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from redis import Redis

from proving.servers.kafka import KafkaServer
from proving.servers.mosquitto import MosquittoServer
from proving.servers.nats import NatsServer
from proving.servers.postgres import PostgresServer
from proving.servers.rabbitmq import RabbitServer
from proving.servers.versitygw import S3Gateway
from tests.bridges import test_kafka, test_nats, test_rabbitmq, test_s3
from tests.sinks.conftest import running
from wallaroo_spark.bridges import Bridge, QueuedStream
from wallaroo_spark.bridges.sources.kafka_topic import KafkaBridge
from wallaroo_spark.bridges.sources.mqtt import MqttBridge
from wallaroo_spark.bridges.sources.nats_stream import NatsBridge
from wallaroo_spark.bridges.sources.postgres_changes import PostgresBridge
from wallaroo_spark.bridges.sources.postgres_table import PostgresTableBridge
from wallaroo_spark.bridges.sources.rabbitmq import RabbitQueueBridge
from wallaroo_spark.bridges.sources.redis_stream import RedisBridge
from wallaroo_spark.bridges.sources.s3_objects import S3Bridge
from wallaroo_spark.connector import Backoff
from wallaroo_spark.errors import ConfigurationError, TransportError

SECRET = "hunter2"
PAYLOAD = b"over TLS"


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitServer]:
    yield from running(RabbitServer())


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    yield from running(NatsServer())


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Gateway]:
    yield from running(S3Gateway())


class Certificates:
    """PEM files of an authority and of what it has issued, and those of a stranger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority, stranger = trustme.CA(), trustme.CA()
        self.ca = self._put("ca", self._authority.cert_pem)
        self.other_ca = self._put("other-ca", stranger.cert_pem)
        past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        self.right = self._issue("right", "127.0.0.1", "localhost")
        self.wrong_name = self._issue("wrong-name", "broker.example")
        self.expired = self._issue("expired", "127.0.0.1", not_before=past, not_after=past.replace(year=2021))
        self.client = self._issue("client", "bridge.example")

    def key_for_java(self) -> bytes:
        """The key of the right certificate as PKCS #8, which is all that Java reads."""
        key = serialization.load_pem_private_key(Path(self.right[1]).read_bytes(), None)
        form = serialization.PrivateFormat.PKCS8
        return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    def _issue(self, name: str, *names: str, **times: Any) -> tuple[str, str]:
        made = self._authority.issue_cert(*names, **times)
        return self._put(name, *made.cert_chain_pems), self._put(f"{name}-key", made.private_key_pem)

    def _put(self, name: str, *blobs: trustme.Blob) -> str:
        path = self._folder / f"{name}.pem"
        path.write_bytes(b"".join(one.bytes() for one in blobs))
        path.chmod(0o600)
        return str(path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


class Medium(ABC):
    """A real server without TLS, that has a message with the payload, and how its bridge is told of TLS."""

    port: int

    @abstractmethod
    def bridge(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> Bridge:
        """The bridge for a port with TLS."""

    def before_tls(self, client: socket.socket, server: socket.socket) -> None:  # noqa: B027 -- most begin with it
        """What passes before TLS begins."""


class Mqtt(Medium):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        server: MosquittoServer = request.getfixturevalue("mosquitto")
        self.port = server.port
        self._topic = f"tls-{uuid.uuid4().hex[:8]}"

        async def publish() -> None:
            client = gmqtt.Client(self._topic)
            await client.connect("127.0.0.1", server.port)
            client.publish(self._topic, PAYLOAD, qos=1, retain=True)
            await client.disconnect()

        asyncio.run(publish())

    def bridge(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> Bridge:
        given: dict[str, Any] = {"mqtt_ca": ca, "user": "u", "password": secret, "client": self._topic + "-bridge"}
        if client is not None:
            given |= dict(zip(("mqtt_certificate", "mqtt_key"), client, strict=True))
        return MqttBridge(f"127.0.0.1:{port}", (self._topic,), **given)


def query(**files: str) -> str:
    """The part of a URL with what is given."""
    return "&".join(f"{name}={value}" for name, value in files.items())


class RabbitMq(Medium):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._queue = test_rabbitmq.Queue(request.getfixturevalue("rabbit"), "classic")
        self._queue.publish(PAYLOAD)
        self.port = self._queue.server.port

    def bridge(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> Bridge:
        files = {"cafile": ca, **dict(zip(("certfile", "keyfile"), client or (), strict=False))}
        login = f"u:{secret}" if secret else "guest:guest"
        return RabbitQueueBridge(f"amqps://{login}@127.0.0.1:{port}/?{query(**files)}", self._queue.name)


class RedisStreams(Medium):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        url = request.getfixturevalue("redis_url")
        self._name = f"tls-{uuid.uuid4().hex[:8]}"
        with Redis.from_url(url) as server:
            server.xadd(self._name, {"value": PAYLOAD})
            facts = server.connection_pool.connection_kwargs
        self.port, self._password = facts["port"], facts.get("password") or ""

    def bridge(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> Bridge:
        files = {"ssl_ca_certs": ca, **dict(zip(("ssl_certfile", "ssl_keyfile"), client or (), strict=False))}
        return RedisBridge(f"rediss://:{secret or self._password}@127.0.0.1:{port}/0?{query(**files)}", self._name)


class Postgres(Medium):
    table = PostgresTableBridge

    def __init__(self, request: pytest.FixtureRequest) -> None:
        server: PostgresServer = request.getfixturevalue("postgres")
        self._name = f"tls{uuid.uuid4().hex[:8]}"
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            self.port = connection.info.port
            connection.execute(f"CREATE TABLE {self._name} (id bigserial PRIMARY KEY, value text)")
            connection.execute(f"INSERT INTO {self._name} (value) VALUES (%s)", [PAYLOAD.decode()])

    def before_tls(self, client: socket.socket, server: socket.socket) -> None:
        assert client.recv(8) == bytes.fromhex("0000000804d2162f")
        client.sendall(b"S")

    def dsn(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> str:
        files = {"sslmode": "verify-full", "sslrootcert": ca, "gssencmode": "disable"}
        files |= dict(zip(("sslcert", "sslkey"), client or (), strict=False))
        return f"postgresql://tests:{secret}@127.0.0.1:{port}/postgres?{query(**files)}"

    def bridge(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> Bridge:
        return PostgresTableBridge(self.dsn(port, secret, ca, client), self._name)


class Nats(Medium):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._stream = test_nats.Stream(request.getfixturevalue("nats"))
        self._stream.publish(PAYLOAD)
        self.port = self._stream.server.port

    def before_tls(self, client: socket.socket, server: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\r\n"):
            line += server.recv(1)
        facts = json.loads(line.removeprefix(b"INFO "))
        client.sendall(b"INFO " + json.dumps({**facts, "tls_required": True}).encode() + b"\r\n")

    def bridge(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> Bridge:
        files = dict(zip(("nats_certificate", "nats_key"), client or (), strict=False))
        login = f"u:{secret}@" if secret else ""
        return NatsBridge(f"tls://{login}127.0.0.1:{port}", self._stream.name, nats_ca=ca, **files)


class S3(Medium):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        server: S3Gateway = request.getfixturevalue("s3")
        for name, value in server.variables.items():
            self._patch.setenv(name, value)
        self._bucket = test_s3.Bucket(server)
        self._bucket.put("web/a", PAYLOAD)
        self.port = self._bucket.server.port

    def bridge(self, port: int, secret: str, ca: str, client: tuple[str, str] | None) -> Bridge:
        self._patch.setenv("AWS_CA_BUNDLE", ca)
        if secret:
            self._patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        return S3Bridge(f"s3://{self._bucket.name}/web/", endpoint=f"https://127.0.0.1:{port}")


class TlsEnd:
    """Ends TLS in front of a medium's server."""

    def __init__(self, medium: Medium, certificate: tuple[str, str], client_ca: str = "") -> None:
        self._medium = medium
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)
        if client_ca:
            self._context.load_verify_locations(client_ca)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listening]
        self.port: int = self._listening.getsockname()[1]

    def __enter__(self) -> TlsEnd:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=[plain], daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._medium.port))
        self._sockets += [plain, server]
        try:
            self._medium.before_tls(plain, server)
            client = self._context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            server.close()
            return
        self._sockets.append(client)
        threading.Thread(target=self._pass, args=[server, client], daemon=True).start()
        self._pass(client, server)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


async def first(bridge: Bridge) -> bytes:
    """The first message of a bridge. Raises what ends the bridge."""
    bridge.retry = Backoff(give_up_after=0.01)
    async with asyncio.timeout(30), contextlib.aclosing(bridge.streams()) as found:
        (stream,) = await anext(found)
        stream.retry = bridge.retry
        try:
            async with contextlib.aclosing(stream._groups(None)) as groups:
                return bytes((await anext(groups)).payloads[0])
        finally:
            if isinstance(stream, QueuedStream):
                await stream.close()


MEDIA = [
    pytest.param(Mqtt, id="mqtt"),
    pytest.param(RedisStreams, id="redis"),
    pytest.param(Postgres, id="postgres-table"),
    pytest.param(RabbitMq, id="rabbitmq", marks=pytest.mark.long),
    pytest.param(Nats, id="nats", marks=pytest.mark.long),
    pytest.param(S3, id="s3", marks=pytest.mark.long),
]


@pytest.fixture(params=MEDIA)
def medium(request: pytest.FixtureRequest) -> Medium:
    found: Medium = request.param(request)
    return found


def test_a_bridge_reads_over_tls_with_an_authority_of_its_own(medium: Medium, certificates: Certificates) -> None:
    with TlsEnd(medium, certificates.right) as server:
        payload = asyncio.run(first(medium.bridge(server.port, "", certificates.ca, None)))

    assert PAYLOAD in payload


@pytest.mark.parametrize("medium", [one for one in MEDIA if one.id != "s3"], indirect=True)
def test_a_bridge_shows_a_certificate_to_a_server_that_asks_for_one(medium: Medium, certificates: Certificates) -> None:
    with TlsEnd(medium, certificates.right, certificates.ca) as server:
        payload = asyncio.run(first(medium.bridge(server.port, "", certificates.ca, certificates.client)))
        with pytest.raises(TransportError):
            asyncio.run(first(medium.bridge(server.port, "", certificates.ca, None)))

    assert PAYLOAD in payload


@pytest.mark.parametrize("wrong", ["authority", "name", "time"])
def test_a_certificate_that_is_not_right_is_refused_and_no_secret_shown(
    wrong: str, medium: Medium, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    shown = {"name": certificates.wrong_name, "time": certificates.expired}.get(wrong, certificates.right)
    ca = certificates.other_ca if wrong == "authority" else certificates.ca
    with TlsEnd(medium, shown) as server, pytest.raises(TransportError) as refused:
        asyncio.run(first(medium.bridge(server.port, SECRET, ca, None)))

    text = str(refused.value)
    assert refused.value.code == "source-away"
    assert "certificate" in text or "doesn't match" in text
    assert "(docs/bridges.md#tls has the settings of TLS)" in text
    assert SECRET not in text + caplog.text


@pytest.mark.parametrize(
    "bridge",
    [
        RedisBridge(f"redis//u:{SECRET}@host", "s"),
        RedisBridge(f"rediss://u:{SECRET}@127.0.0.1:1/0?ssl_nothing=1", "s"),
        RabbitQueueBridge(f"amqp//u:{SECRET}@host/", "q"),
        RabbitQueueBridge(f"amqps://u:{SECRET}@127.0.0.1:port/", "q"),
        PostgresTableBridge(f"postgresql://u:{SECRET} x@127.0.0.1:1/x", "t"),
        PostgresBridge(f"host=127.0.0.1 password={SECRET} x"),
    ],
    ids=["redis", "redis-option", "rabbitmq", "rabbitmq-port", "postgres-table", "postgres"],
)
def test_a_url_that_cannot_be_read_is_refused_and_not_shown(bridge: Bridge) -> None:
    with pytest.raises(ConfigurationError, match=r"the URL of \w+ cannot be read; expected ") as refused:
        asyncio.run(first(bridge))

    assert refused.value.code == "url-invalid"
    assert SECRET not in str(refused.value)


async def test_a_nats_server_that_is_away_is_named_at_once_by_its_error() -> None:
    bridge = NatsBridge(f"nats://u:{SECRET}@127.0.0.1:1", "S")

    with pytest.raises(TransportError, match="Connect call failed"):
        await first(bridge)


KAFKA = """\
security.protocol=SASL_SSL
ssl.ca.location={ca}
sasl.mechanism=PLAIN
sasl.username=bridge
sasl.password=env:KAFKA_PASSWORD
"""


@pytest.mark.long
def test_a_bridge_reads_from_kafka_with_a_password_over_tls(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pem, config = tmp_path / "broker.pem", tmp_path / "kafka.conf"
    pem.write_bytes(certificates.key_for_java() + Path(certificates.right[0]).read_bytes())
    with contextlib.contextmanager(running)(KafkaServer(pem=str(pem), password=SECRET)) as server:
        topic = test_kafka.Topic(server)
        topic.produce(PAYLOAD)

        def bridge(ca: str, password: str) -> Bridge:
            config.write_text(KAFKA.format(ca=ca), encoding="utf-8")
            monkeypatch.setenv("KAFKA_PASSWORD", password)
            return KafkaBridge(server.secured, topic.name, client_config=str(config))

        assert asyncio.run(first(bridge(certificates.ca, SECRET))) == PAYLOAD
        refusals = []
        for wrong in ((certificates.other_ca, SECRET), (certificates.ca, f"{SECRET}-not")):
            with pytest.raises(TransportError) as refused:
                asyncio.run(first(bridge(*wrong)))
            refusals.append(str(refused.value))

    unverified, unknown = refusals
    assert "certificate verify failed" in unverified
    assert "(docs/bridges.md#tls has the settings of TLS)" in unverified
    assert "Authentication failed" in unknown
    assert all(SECRET not in one for one in [*refusals, caplog.text])
