"""The verbs for durable streams and pipelines, with a gateway in memory and an application's folder."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tests.client.fake_gateway import FakeGateway
from tests.pipelines.schema.samples import SHOP
from tests.waiting import SECONDS, until
from wallaroo_spark.api.limits import EVENT_BYTES
from wallaroo_spark.cli.main import cli
from wallaroo_spark.client import Event
from wallaroo_spark.client.window import BulkWindow
from wallaroo_spark.streams.places import history_of
from wallaroo_spark.streams.rows import HISTORY

VERB = str(Path(sys.executable).with_name("wallaroo-spark"))


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    made = FakeGateway()
    made.memory.streams = {"shop/orders": [[], []], "shop/paid": [[], []]}
    yield await made.start()
    await made.stop()


async def run(gateway: FakeGateway, *arguments: str, status: int = 0, stdin: bytes = b"") -> Result:
    """Run a verb in this process, in a thread, because the gateway is here."""
    runner = CliRunner(env={"WALLAROO_GATEWAY": gateway.address})
    result = await asyncio.to_thread(runner.invoke, cli, list(arguments), input=stdin)
    assert result.exit_code == status, (result.output, result.exception)
    return result


async def test_lines_are_published_and_consumed(gateway: FakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"order": 1}\n\nsecond\n', encoding="utf-8")
    common = ("shop/orders", "--type", "shop.order.created", "--partition", "1")

    first = await run(gateway, "publish", *common, str(file), "--batch", "1")
    second = await run(gateway, "publish", *common, "--data", "3", "--id", "three", "--json")
    again = await run(gateway, "publish", *common, "--data", "3", "--id", "three", "--json")
    whole = b'{"specversion": "1.0", "type": "a", "id": "4", "source": "/x", "data_base64": "/w==", "trace": "t"}\n'
    await run(gateway, "publish", "shop/orders", "--cloudevents", "--partition", "1", stdin=whole)
    shown = await run(gateway, "consume", "shop/orders", "--start", "beginning", "--limit", "4")
    as_json = await run(gateway, "consume", "shop/orders", "--start", "4", "--limit", "1", "--json", "--group", "g")

    assert first.stdout == "Published 2 events to shop/orders.\n"
    assert json.loads(second.stdout) == json.loads(again.stdout) == {"id": "three", "partition": 1, "offset": 3}
    assert shown.stdout.splitlines() == [
        '1/1 shop.order.created {"order": 1}',
        "1/2 shop.order.created second",
        "1/3 shop.order.created 3",
        "1/4 a \\xff",
    ]
    assert json.loads(as_json.stdout) == json.loads(whole) | {"wallaroopartition": 1, "wallaroooffset": 4}


async def test_a_line_that_is_refused_is_named_and_the_others_are_published(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_bytes(b"first\n\n" + b"x" * (EVENT_BYTES + 1) + b"\nlast\n")

    found = await run(gateway, "publish", "shop/orders", "--type", "t", "--partition", "0", str(file), status=1)

    assert f"{file}, line 3: the event has " in found.stderr
    assert found.stdout == "Published 2 events to shop/orders.\n"
    assert [event.binary_data for event in gateway.memory.streams["shop/orders"][0]] == [b"first", b"last"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("publish", "shop/orders"), "give --type TYPE, or --cloudevents"),
        (("publish", "shop/orders", "--type", "a", "--data", "1", "--cloudevents"), "give --data TEXT or files"),
        (("publish", "shop/orders", "--type", "a", "--id", "1"), "--id is the id of the event of --data"),
        (("call", "shop/price", "--gateway", ""), "give --gateway HOST:PORT, or --registry URL and --application NAME"),
    ],
)
async def test_a_verb_that_was_not_understood_says_why(arguments: tuple[str, ...], said: str) -> None:
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments))

    assert result.exit_code == 2
    assert said in result.output


async def test_a_line_that_is_no_event_is_named(gateway: FakeGateway) -> None:
    result = await run(gateway, "publish", "shop/orders", "--cloudevents", stdin=b'{"id": "1"}\n', status=1)

    assert "line 1 is not an event in the JSON format of CloudEvents (it has no type)" in result.output


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_command_works_on_a_stage(gateway: FakeGateway, number: signal.Signals, status: int) -> None:
    gateway.memory.offer("shop/fulfil", "charge", 7, Event("a", {"price": 3}), pay=(b'{"ok":true}', "application/json"))
    command = (
        """python3 -c 'import json, os, sys; work = json.load(sys.stdin); print(json.dumps({"output": """
        """[work["root_event"]["data"], work["outputs"], os.environ["WALLAROO_INSTANCE"]], """
        """"streams": {"shop/paid": [{"type": "paid"}]}}))'"""
    )
    program = await asyncio.create_subprocess_exec(
        VERB, "stage", "shop/fulfil", "charge", "--exec", command, "--streams", "--gateway", gateway.address,
        "--json", stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await until(lambda: gateway.memory.outputs or program.returncode is not None)
    program.send_signal(number)
    shown, said = await asyncio.wait_for(program.communicate(), SECONDS)

    assert json.loads(shown) == {"partition": 0, "instance": 7, "error": None}
    assert json.loads(gateway.memory.outputs["charge", 7][0]) == [{"price": 3}, {"pay": {"ok": True}}, "7"]
    assert sum(map(len, gateway.memory.streams["shop/paid"])) == 1
    assert (said.decode(), program.returncode) == (f"{number.name}: finishing.\n", status)


async def test_a_command_that_fails_gives_the_work_back(gateway: FakeGateway) -> None:
    gateway.memory.offer("shop/fulfil", "charge", 7, Event("a"))
    program = await asyncio.create_subprocess_exec(
        VERB, "stage", "shop/fulfil", "charge", "--exec", "echo no money >&2; exit 3", "--gateway", gateway.address,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await until(lambda: gateway.memory.nacks or program.returncode is not None)
    program.terminate()
    await asyncio.wait_for(program.communicate(), SECONDS)

    assert "the command ended with status 3: no money" in gateway.memory.nacks[0][1]


async def test_a_command_answers_calls(gateway: FakeGateway) -> None:
    nobody = await run(gateway, "call", "shop/price", status=1)
    assert "nothing serves shop/price" in nobody.output
    program = await asyncio.create_subprocess_exec(
        VERB, "serve", "shop/price", "--exec", "cat", "--gateway", gateway.address
    )
    await asyncio.wait_for(gateway.joined.wait(), SECONDS)
    answer = await run(gateway, "call", "shop/price", "--type", "ask", "--data", '{"order": 1}')
    program.terminate()
    await asyncio.wait_for(program.wait(), SECONDS)

    found = json.loads(answer.stdout)  # the whole event, because the command is cat
    assert (found["type"], found["data"]) == ("ask", {"order": 1})


class Folder:
    """An application's folder, and the verbs that read it."""

    def __init__(self, folder: Path) -> None:
        self.app = str(folder / "app")
        (folder / "shop.yaml").write_text(SHOP, encoding="utf-8")
        self.run("apply", str(folder / "shop.yaml"))

    def run(self, *arguments: str, status: int = 0) -> Any:
        result = CliRunner(env={"WALLAROO_APP": self.app}).invoke(cli, arguments)
        assert result.exit_code == status, (result.output, result.exception)
        return result


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def history_row(instance: int, kind: str, seconds: float, **more: Any) -> dict[str, Any]:
    row = dict.fromkeys(HISTORY.names)
    at = datetime(2026, 7, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return {**row, "pipeline": "shop/fulfil", "partition": 0, "instance": instance, "kind": kind, "at": at, **more}


def test_pipelines_and_their_instances_are_shown(folder: Folder) -> None:
    began = datetime(2026, 7, 1, tzinfo=UTC)
    rows = [
        history_row(1, "began", 0),
        history_row(1, "output", 2, stage="charge", began_at=began),
        history_row(1, "pointer", 3, target_stream="shop/shipments", target_partition=0, offsets=[5]),
        history_row(1, "ended", 3, outcome="done", reason=""),
        history_row(2, "began", 4),
        history_row(2, "nacked", 5, stage="charge", attempts=3, reason="no stock"),
        history_row(9, "skipped", 5, offsets=[9, 10]),
    ]
    assert "has no such instances" in folder.run("pipelines", "instances", "fulfil").output
    place = Path(history_of(folder.app))
    place.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, HISTORY), place / "0-a.parquet")

    found = json.loads(folder.run("pipelines", "instances", "shop/fulfil", "--json").output)["instances"]
    table = folder.run("pipelines", "instances", "fulfil", "--state", "done").output

    assert [(one["instance"], one["state"], one["seconds"]) for one in found] == [(2, "active", None), (1, "done", 3.0)]
    assert found[0]["reason"] == "delivery 3 of stage charge has failed: no stock"
    assert (found[1]["stages"], found[1]["outputs"]) == ({"charge": 2.0}, ["shop/shipments/0:5"])
    assert "0/1" in table
    assert "charge 2.0 s" in table
    assert "0/2" not in table
    assert "shop/fulfil" in folder.run("pipelines", "list").output
    assert "charge" in folder.run("pipelines", "show", "fulfil").output
    elsewhere = CliRunner().invoke(cli, ["pipelines", "instances", "fulfil", "--app", "s3a://bucket/none"])
    assert elsewhere.exit_code == 1


def test_tokens_are_created_listed_and_revoked(folder: Folder, tmp_path: Path) -> None:
    token = tmp_path / "token.yaml"
    token.write_text("kind: Token\nname: web\nttl: 1h\npermissions: [{access: all}]\n", encoding="utf-8")
    folder.run("apply", str(token))

    assert folder.run("token", "list").output == "There are no tokens.\n"
    made = json.loads(folder.run("token", "create", "web", "--json").output)
    shown = folder.run("token", "create", "web")
    states = json.loads(folder.run("token", "list", "--json").output)["tokens"]
    folder.run("token", "revoke", made["id"])
    after = {one["id"]: one["state"] for one in json.loads(folder.run("token", "list", "--json").output)["tokens"]}

    assert made["token"].startswith(f"wst_{made['id']}_")
    assert shown.stdout.startswith("wst_")
    assert [one["state"] for one in states] == ["valid", "valid"]
    assert sorted(after.values()) == ["revoked", "valid"]
    assert made["token"].removeprefix(f"wst_{made['id']}_") not in folder.run("token", "list").output
    assert "there is no token" in folder.run("token", "revoke", "0" * 16, status=1).output


async def test_a_file_that_is_published_again_after_an_error_has_the_same_ids(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("1\n1\n2\n", encoding="utf-8")

    async def ids(*more: str) -> list[str]:
        arguments = ("publish", "shop/orders", "--type", "t", "--partition", "0", str(file), "--json", *more)
        return [json.loads(line)["id"] for line in (await run(gateway, *arguments)).stdout.splitlines()]

    first, again, new = await ids(), await ids(), await ids("--new-ids")
    file.write_text("1\n1\n3\n", encoding="utf-8")
    corrected = await ids()

    assert first == again
    assert [one.rpartition(":")[0] for one in first] == ["orders.jsonl:1", "orders.jsonl:2", "orders.jsonl:3"]
    assert not set(first) & set(new)
    assert (corrected[:2], corrected[2] == first[2]) == (first[:2], False)


async def test_whole_events_of_a_file_that_have_no_id_have_the_same_one_each_time(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"type": "t"}\n{"type": "t", "id": "own"}\n', encoding="utf-8")
    publish = ("publish", "shop/orders", "--cloudevents", "--partition", "0", "--json", str(file))

    first, again = (await run(gateway, *publish), await run(gateway, *publish))

    assert first.stdout == again.stdout
    ids = [json.loads(line)["id"] for line in first.stdout.splitlines()]
    assert (ids[0].rpartition(":")[0], ids[1]) == ("orders.jsonl:1", "own")


async def test_a_publish_that_has_failed_says_by_which_ids_it_can_be_repeated(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(window: BulkWindow) -> Any:
        raise RuntimeError("no request")

    monkeypatch.setattr(BulkWindow, "next_request", broken)
    common = ("publish", "shop/orders", "--type", "t")

    of_data = await run(gateway, *common, "--data", "1", status=1)
    of_lines = await run(gateway, *common, stdin=b"1\n", status=1)

    assert re.search(r"publish them again with the same ids \(--id [0-9a-f-]{36}\)", of_data.output), of_data.output
    assert "those of these lines are random, so lines that are published again may be written twice" in of_lines.output
