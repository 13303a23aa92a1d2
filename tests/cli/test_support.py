"""``support``: the archive has all parts and no secret, against a registry, a worker and a checkpoint that are real."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.cli.conftest import COOKIE, TOKEN, Desk
from tests.security.acl import users
from tests.waiting import eventually
from wallaroo_spark.cli.main import cli
from wallaroo_spark.cli.support import archive
from wallaroo_spark.cli.support.archive import Bundle, Cleaner
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.inner.client import status_token

PAYLOAD = "payload-of-a-customer"
PAGE_TOKEN = "page-token-of-the-tests"
VARIABLE = "variable-of-the-tests"
STORE = "store-password-of-the-tests"
JDBC = "jdbc-password-of-the-tests"
IN_LOG = "log-secret-of-the-tests"
GIVEN = "given-secret-of-the-tests"
PROFILE = "profile-cookie-of-the-tests"
IN_URL = "url-password-of-the-tests"
QUOTED = "quoted/pass word:of-the-tests"
SECRETS = (
    COOKIE, TOKEN, status_token(TOKEN), PAYLOAD, PAGE_TOKEN, VARIABLE, STORE, JDBC, IN_LOG, GIVEN, PROFILE, IN_URL,
    QUOTED, "quoted%2Fpass%20word%3Aof-the-tests", "pass-of-",
)  # fmt: skip


def support(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["support", *arguments])


def members(archive: Path) -> dict[str, str]:
    """The files of an archive, below its folder."""
    with tarfile.open(archive) as found:
        return {
            entry.name.partition("/")[2]: file.read().decode("utf-8")
            for entry in found.getmembers()
            if (file := found.extractfile(entry)) is not None
        }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with the files of a checkpoint, whose content is nobody's business."""
    folder = tmp_path / "checkpoint"
    for name in ("offsets/0", "offsets/1", "commits/0", "metadata"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"v1\n{PAYLOAD}\n", encoding="utf-8")
    return folder


def test_an_archive_has_every_part_and_no_secret(
    desk: Desk, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = users(desk.url, {"orders": desk.receiver}, also="+scan +type +hlen +strlen +pttl")["fleet"]
    monkeypatch.setenv("ORDERS_REDIS", url)
    monkeypatch.setenv("SPARK_STORE_PASSWORD", VARIABLE)
    monkeypatch.setenv("SPARK_STORE", f"https://reader:{IN_URL}@store.test/path")
    monkeypatch.setenv("WALLAROO_CONFIG", str(tmp_path / "profiles.toml"))
    (tmp_path / "profiles.toml").write_text(f'[contexts.test.send]\ncookie = "{PROFILE}"\n', encoding="utf-8")
    config = tmp_path / "orders.yaml"
    values = {
        "receiver": desk.receiver,
        "registry": "env:ORDERS_REDIS",
        "cookie": COOKIE,
        "token": TOKEN,
        "statusPageToken": PAGE_TOKEN,
        "workers": 1,
        "checkpoint": str(checkpoint),
        "sink": {"format": "jdbc", "options": {"url": f"jdbc:postgresql://db/x?user=u&password={JDBC}"}},
        "spark": {"spark.hadoop.fs.s3a.secret.key": STORE},
    }
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    log = tmp_path / "driver.log"
    log.write_text(
        f"HELLO cookie={COOKIE!r} from {url}\nlogin with {VARIABLE} and {STORE}, {GIVEN}\nprofile {PROFILE} {TOKEN}\n"
        f"{{'access_key': '{IN_LOG}', 'page': '{PAGE_TOKEN}'}}\nAuthorization: Bearer {IN_LOG}\npassword = {QUOTED!r}\n"
        f"GET https://somebody:{IN_URL}@host.test/\nthe last line stays\n",
        encoding="utf-8",
    )
    archive = tmp_path / "bundle.tar.gz"
    desk.open.clear()
    with BlockingConnector("orders", instance="shop-1", workers=desk.address, cookie=COOKIE) as connector:
        connector.open("orders.jsonl").send(PAYLOAD.encode(), id=1)
        eventually(lambda: desk.client.inspect(10)["rows"] == 1)
        shown = support(str(config), "--log", str(log), "--secret", GIVEN, "--output", str(archive))
        desk.open.set()

    assert shown.exit_code == 0, shown.output
    found = members(archive)
    everything = "\n".join([shown.output, *found, *found.values()])
    assert [secret for secret in SECRETS if secret in everything] == []
    assert archive.stat().st_mode & 0o077 == 0
    assert found.keys() == {
        "contents.json", "versions.json", "variables.json", "options.json", "check.json", "receivers.json",
        "topics.json", "registry.json", "checkpoint.json", "sinks.json", "logs/1-driver.log",
    }, shown.output  # fmt: skip
    read: dict[str, Any] = {name: json.loads(text) for name, text in found.items() if name.endswith(".json")}
    assert read["versions.json"].keys() >= {"wallaroo-spark", "python", "pyspark", "java", "system", "extras"}
    assert read["versions.json"]["extras"]["registry"]["redis"]
    assert read["variables.json"]["SPARK_STORE_PASSWORD"] == "***"
    assert read["variables.json"]["SPARK_STORE"] == "https://***@store.test/path"
    assert read["options.json"]["given"]["cookie"] == "***"
    assert read["options.json"]["given"]["registry"] == "env:ORDERS_REDIS"
    assert read["options.json"]["given"]["workers"] == 1
    assert read["options.json"]["defaults"]["memoryBudget"] == 256 << 20
    (slot,) = read["receivers.json"][desk.receiver]["slots"]
    assert any("Rewound(epoch=" in line for line in slot["story"])
    assert slot["rows"] == 1
    assert f"wallaroo:{{{desk.receiver}}}:leases" in [key["name"] for key in read["registry.json"]["keys"]]
    files = read["checkpoint.json"]["files"]
    assert [one["name"] for one in files] == ["commits/0", "metadata", "offsets/0", "offsets/1"]
    assert files[0]["bytes"] == len(f"v1\n{PAYLOAD}\n")
    assert files[0]["written"]
    assert found["logs/1-driver.log"].endswith("the last line stays\n")
    assert "collected  receivers.json" in shown.stdout
    assert f"Wrote {archive} (" in shown.stdout


def test_parts_that_are_not_reached_have_their_reason(tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"

    shown = support(
        *("--registry", f"redis://:{IN_URL}@127.0.0.1:1", "--receiver", "orders", "--output", str(archive)),
        *("--checkpoint", str(tmp_path / "nothing"), "--log", str(tmp_path / "no.log"), "--json"),
    )

    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    reasons = {one["name"]: one["reason"] for one in answer["missing"]}
    assert "127.0.0.1:1 cannot be reached" in reasons["registry.json"]
    assert "127.0.0.1:1 cannot be reached" in reasons["status of orders"]
    assert "nothing is not a folder" in reasons["checkpoint.json"]
    assert "cannot be read: No such file" in reasons["logs/1-no.log"]
    assert answer["archive"] == str(archive)
    assert {one["name"] for one in answer["collected"]} >= {"versions.json", "variables.json"}
    assert answer["missing"] == json.loads(members(archive)["contents.json"])["missing"]
    assert IN_URL not in shown.output


def test_a_worker_that_does_not_answer_is_named(desk: Desk, tmp_path: Path) -> None:
    desk.registry.acquire(1, desk.registry.next_submission(), "ghost", "127.0.0.1:2", "127.0.0.1:1")

    shown = support("--registry", desk.url, "--receiver", desk.receiver, "--output", str(tmp_path / "b.tgz"))

    assert shown.exit_code == 0, shown.output
    assert f"missing    status of {desk.receiver}: slot 1: worker at 127.0.0.1:1 did not answer" in shown.stdout
    assert "receivers.json" in members(tmp_path / "b.tgz")


def test_a_user_of_redis_that_may_not_list_keys_gets_the_leases(desk: Desk, tmp_path: Path) -> None:
    url = users(desk.url, {"orders": desk.receiver})["fleet"]

    shown = support("--registry", url, "--receiver", desk.receiver, "--output", str(tmp_path / "b.tgz"))

    assert "missing    keys of the registry: Redis at" in shown.stdout
    found = json.loads(members(tmp_path / "b.tgz")["registry.json"])
    assert [(lease["connect"], lease["live"]) for lease in found["leases"]] == [(desk.address, True)]
    assert found["fleet"]["status_token"] == "***"


def test_a_configuration_that_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    config = tmp_path / "orders.yaml"
    config.write_text(f"receiver: orders\ncookie: {COOKIE}: {TOKEN}\n", encoding="utf-8")

    shown = support(str(config), "--output", str(tmp_path / "b.tgz"))

    assert shown.exit_code == 0, shown.output
    assert "missing    options.json: " in shown.stdout
    assert COOKIE not in shown.output + "".join(members(tmp_path / "b.tgz").values())


def test_a_log_that_is_no_text_is_not_taken(tmp_path: Path) -> None:
    log = tmp_path / "driver.log.gz"
    log.write_bytes(b"\x1f\x8b\x08 packed")

    shown = support("--log", str(log), "--output", str(tmp_path / "b.tgz"))

    assert "is no text, so secrets cannot be removed from it" in shown.stdout


def test_a_long_log_begins_with_a_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wallaroo_spark.cli.support.support.LOG_BYTES", 20)
    log = tmp_path / "driver.log"
    log.write_text(f"{GIVEN}\nthe last line\n", encoding="utf-8")

    support("--log", str(log), "--output", str(tmp_path / "b.tgz"))

    assert members(tmp_path / "b.tgz")["logs/1-driver.log"] == "the last line\n"


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    archive = tmp_path / "b.tgz"
    archive.write_text("mine", encoding="utf-8")

    shown = support("--output", str(archive))
    of_another_kind = support("--output", str(tmp_path / "b.rar"))

    assert (shown.exit_code, of_another_kind.exit_code) == (1, 2)
    assert "exists; name another one" in shown.stderr
    assert archive.read_text(encoding="utf-8") == "mine"


def test_a_part_without_an_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(archive, "PART_SECONDS", 0.1)
    release = threading.Event()
    bundle = Bundle(Cleaner())

    bundle.collect("slow.json", "a part that waits", release.wait)
    contents = bundle.write(tmp_path / "b.tgz")
    release.set()

    assert (contents["collected"], [one["name"] for one in contents["missing"]]) == ([], ["slow.json"])
    assert "more than 0.1 s" in contents["missing"][0]["reason"]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("redis://user:pw@host:1/0 and http://host/a@b", "redis://***@host:1/0 and http://host/a@b"),
        ("password=abc&user=u", "password=***&user=u"),
        ('{"apiKey": "a b", "n": 1}', '{"apiKey": "***", "n": 1}'),
        ("Hello(cookie=b'x\\'y', instance='a')", "Hello(cookie='***', instance='a')"),
        ("authorization: Basic dXNlcjpwdw==", "authorization: *** ***"),
        ("cookie: env:ORDERS_COOKIE", "cookie: env:ORDERS_COOKIE"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
        ('password="cut off\nnext line', "password=***\nnext line"),
        ("12 tokens of 40 keys", "12 tokens of 40 keys"),
    ],
)
def test_secrets_are_found_by_their_place(text: str, clean: str) -> None:
    assert Cleaner().text(text) == clean


def test_a_known_secret_is_found_in_other_forms() -> None:
    cleaner = Cleaner()
    cleaner.learn('with "quotes" and/more')

    assert cleaner.text('{"a": "with \\"quotes\\" and/more"}, with%20%22quotes%22%20and%2Fmore') == '{"a": "***"}, ***'


@pytest.mark.parametrize("part", ["a", "token", "://", "token='", 'cookie="', "basic ", "x.y-"])
def test_a_long_line_is_searched_in_the_time_of_its_length(part: str) -> None:
    """A search whose time grows with the square of the length would not end here for hours."""
    line = part * (200_000 // len(part))

    assert len(Cleaner().text(f"{line} password=abc\nend")) > 3


def test_json_keeps_its_form_and_hides_by_name() -> None:
    given = {"token": "abc", "cookie": "env:A", "list": [{"password": "x"}], "n": 1, "none": None}

    assert Cleaner().json(given) == {
        "token": "***", "cookie": "env:A", "list": [{"password": "***"}], "n": 1, "none": None
    }  # fmt: skip
