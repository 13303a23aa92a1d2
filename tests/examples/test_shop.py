"""The shop's example: its schema, its stages in Python and in JavaScript, and its judge, with a real gateway around
controllers in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from proving.shop.judge import INPUTS, OUTPUTS, HistoryRow, StreamRecord, Verdict, judge
from tests.conftest import ROOT
from tests.gateway.memory import MemoryApplication, serving
from tests.waiting import SECONDS, until
from wallaroo_spark.client import AsyncClient, Event
from wallaroo_spark.pipelines.controller.messages import instructions as i

SHOP = ROOT / "examples" / "shop"
STREAMS = sorted({*INPUTS.values(), *(name for names in OUTPUTS.values() for name in names)})
UNPAYABLE = 1000


@contextlib.asynccontextmanager
async def program(*command: str, cwd: Path = ROOT) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that runs, and is killed at the end."""
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def worker(address: str, *stages: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return program(sys.executable, str(SHOP / "workers.py"), address, *stages)


async def publish(address: str, orders: int) -> set[int]:
    """Publish orders from 1 on; every sixth cannot be paid, and these are returned."""
    bad = {order for order in range(1, orders + 1) if order % 6 == 0}
    async with AsyncClient(address, source="/shop/web") as client:
        for order in range(1, orders + 1):
            price = UNPAYABLE if order in bad else order
            event = Event("shop.order.created", {"order": order, "price": price}, id=str(order))
            await client.publish("shop/orders", event)
    return bad


def history_of(application: MemoryApplication) -> list[HistoryRow]:
    """The rows that the application has in its instructions."""
    rows = []
    for key, said in list(application.said):
        match said:
            case i.InstanceBegan():
                rows.append(HistoryRow(said.pipeline, key.partition, said.instance, "began", _at(said.at)))
            case i.InstanceEnded():
                row = HistoryRow(said.pipeline, key.partition, said.instance, "ended", _at(said.at))
                rows.append(dataclasses.replace(row, outcome=str(said.outcome)))
            case i.StoreOutput():
                of = said.delivery
                rows.append(
                    HistoryRow(of.pipeline, key.partition, of.instance, "output", _at(said.ended_at), stage=of.stage)
                )
            case i.StorePointer():
                of = said.output.delivery
                rows.append(
                    HistoryRow(
                        of.pipeline,
                        key.partition,
                        of.instance,
                        "pointer",
                        _at(0),
                        None,
                        (said.target.stream, said.target.partition),
                        said.offsets,
                    )
                )
    return rows


def _at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def streams_of(application: MemoryApplication) -> dict[str, list[StreamRecord]]:
    return {
        name: [
            StreamRecord(key.partition, offset, record.data or b"")
            for key, records in list(application.records.items())
            if key.stream == name
            for offset, record in enumerate(records, start=1)
        ]
        for name in STREAMS
    }


async def judged(application: MemoryApplication, orders: int, bad: set[int]) -> Verdict:
    """Wait until nothing is active, and judge."""

    def ended() -> bool:
        rows = [row.pipeline for row in history_of(application) if row.kind == "ended"]
        return rows.count("shop/fulfil") == orders and rows.count("shop/compensate") == len(bad)

    await until(ended)
    return judge(range(1, orders + 1), history_of(application), streams_of(application), bad)


@pytest.fixture
def application() -> Any:
    made = MemoryApplication((SHOP / "shop.yaml").read_text(encoding="utf-8"))
    yield made
    made.close()


async def test_the_shop_keeps_its_promises_while_its_workers_are_killed(application: MemoryApplication) -> None:
    async with serving(application) as gateway:
        async with worker(gateway.address) as first:
            bad = await publish(gateway.address, 18)
            await until(lambda: any(isinstance(said, i.StoreOutput) for _, said in list(application.said)))
            os.killpg(first.pid, signal.SIGKILL)
        async with worker(gateway.address):
            verdict = await judged(application, 18, bad)

    assert verdict.broken == []
    assert verdict.counts["shop/fulfil done"] == 15
    assert verdict.counts["shop/compensate done"] == verdict.counts["shop/fulfil failed"] == 3


@pytest.mark.long
async def test_a_stage_in_javascript(application: MemoryApplication, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("there is no npm here, with which the example installs @grpc/grpc-js")
    install = await asyncio.create_subprocess_exec(
        npm, "install", "--no-audit", "--no-fund", "@grpc/grpc-js", "@grpc/proto-loader", cwd=tmp_path
    )
    assert await asyncio.wait_for(install.wait(), SECONDS) == 0
    async with serving(application) as gateway:
        protos = str(ROOT / "wallaroo_spark" / "api")
        async with (
            worker(gateway.address, "pay", "reserve", "release", "refund"),
            program("node", str(SHOP / "ship.mjs"), protos, f"127.0.0.1:1,{gateway.address}", cwd=tmp_path),
        ):
            bad = await publish(gateway.address, 12)
            verdict = await judged(application, 12, bad)

    assert verdict.broken == []
    assert verdict.counts["records of shop/shipments"] == 10


@pytest.mark.long
@pytest.mark.timeout(8 * SECONDS)
async def test_a_stage_in_java(application: MemoryApplication, tmp_path: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        pytest.skip("there is no mvn here, with which the example is built")
    for name in ("pom.xml", "Ship.java"):
        shutil.copy(SHOP / "java" / name, tmp_path)
    protos = f"-Dprotos={ROOT / 'wallaroo_spark' / 'api'}"
    goals = ("compile", "dependency:build-classpath", f"-Dmdep.outputFile={tmp_path}/classpath")
    build = await asyncio.create_subprocess_exec(mvn, "-q", "-B", protos, *goals, cwd=tmp_path)
    assert await asyncio.wait_for(build.wait(), 4 * SECONDS) == 0
    classes = f"{tmp_path}/target/classes:{(tmp_path / 'classpath').read_text()}"
    async with (
        serving(application) as gateway,
        worker(gateway.address, "pay", "reserve", "release", "refund"),
        program("java", "-cp", classes, "Ship", gateway.address),
    ):
        bad = await publish(gateway.address, 12)
        verdict = await judged(application, 12, bad)

    assert verdict.broken == []
    assert verdict.counts["records of shop/shipments"] == 10


async def built(*command: str, cwd: Path) -> None:
    """Run a step of a build; programs that Go installs are found by later ones."""
    variables = {"GOBIN": f"{cwd}/bin", "PATH": f"{cwd}/bin{os.pathsep}{os.environ['PATH']}"}
    step = await asyncio.create_subprocess_exec(*command, cwd=cwd, env={**os.environ, **variables})
    assert await asyncio.wait_for(step.wait(), 4 * SECONDS) == 0, command


@pytest.mark.long
@pytest.mark.timeout(8 * SECONDS)
async def test_a_stage_in_go(application: MemoryApplication, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go here, which compiles the example")
    for name in ("go.mod", "ship.go"):
        shutil.copy(SHOP / "go" / name, tmp_path)
    # The commands in the head of the file, with the protoc of grpcio-tools.
    head = (SHOP / "go" / "ship.go").read_text().split("package main")[0].replace("\\\n//", "")
    for line in re.findall(r"^//\t((?:go install|protoc|go mod tidy).*)$", head, re.MULTILINE):
        protos = line.replace("FOLDER-OF-THE-PROTOS", str(ROOT / "wallaroo_spark" / "api"))
        command = protos.partition("&&")[0].split()
        if command[0] == "protoc":
            command = [sys.executable, "-m", "grpc_tools.protoc", *command[1:]]
        await built(*command, cwd=tmp_path)
    await built(go, "build", "-o", "ship-of-the-shop", cwd=tmp_path)
    async with (
        serving(application) as gateway,
        worker(gateway.address, "pay", "reserve", "release", "refund"),
        program(f"{tmp_path}/ship-of-the-shop", f"127.0.0.1:1,{gateway.address}"),
    ):
        bad = await publish(gateway.address, 12)
        verdict = await judged(application, 12, bad)

    assert verdict.broken == []
    assert verdict.counts["records of shop/shipments"] == 10


def test_broken_promises_are_found() -> None:
    """Each row or record that is left out, repeated or too many is a sentence of the verdict."""
    when = _at(0)
    base = [
        HistoryRow("shop/fulfil", 0, 1, "began", when),
        *(HistoryRow("shop/fulfil", 0, 1, "output", when, stage=name) for name in ("pay", "reserve", "ship")),
        HistoryRow("shop/fulfil", 0, 1, "pointer", when, None, ("shop/receipts", 0), (1,)),
        HistoryRow("shop/fulfil", 0, 1, "pointer", when, None, ("shop/shipments", 0), (1,)),
        HistoryRow("shop/fulfil", 0, 1, "ended", when, outcome="done"),
    ]
    record = StreamRecord(0, 1, b'{"order": 1}')
    streams = {name: [record] if name in ("shop/orders", *OUTPUTS["shop/fulfil"]) else [] for name in STREAMS}

    assert judge([1], base, streams, []).broken == []
    for place, row in enumerate(base):
        assert judge([1], [*base[:place], *base[place + 1 :]], streams, []).broken, f"without {row}"
        assert judge([1], [*base, row], streams, []).broken, f"twice {row}"
    for name in STREAMS:
        more = {**streams, name: [*streams[name], StreamRecord(0, len(streams[name]) + 1, b'{"order": 1}')]}
        assert judge([1], base, more, []).broken, f"more in {name}"
        if streams[name]:
            assert judge([1], base, {**streams, name: []}, []).broken, f"less in {name}"
    together = [HistoryRow("shop/fulfil", 0, number, "began", when) for number in range(1, 22)]
    assert any("21 instances were active" in one for one in judge([1], together, streams, []).broken)
