"""Our writer and a sink of another making: the crash-point sweep, with kills of the sink too, and its refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.life import rows_of
from tests.sinks.remote import terse
from tests.sinks.sweep import CASES, IN_TASKS, IN_THE_DRIVER, Case, Lives, Subject, sweep
from tests.sinks.two_phase.memory import partition_rows, pieces
from tests.waiting import POLL_SECONDS, SECONDS, eventually
from wallaroo_spark.errors import SinkError, TransportError
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.sinks import Transaction
from wallaroo_spark.sinks.connector_sink import ConnectorSink
from wallaroo_spark.sinks.coordinator import Coordinator, Vote, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.settings import ConnectionSettings
from wallaroo_spark.sinks.sink_client import SinkClient
from wallaroo_spark.steps import SinkStep, at_each

ME = "tests.sinks.remote.test_terse_sink"
LONG = [pytest.mark.long]
SETTINGS: dict[str, Any] = {"version": terse.VERSION, "cookie": terse.COOKIE}
STEPS = [*IN_TASKS, *IN_THE_DRIVER]
KILLED = [
    pytest.param(step, batch, id=f"{step.name} of batch {batch}", marks=[] if batch or step in IN_TASKS else LONG)
    for step in STEPS
    for batch in (0, 1)
]
FIRST = [
    pytest.param(step, too, id=step.name + ", and the sink too" * too, marks=LONG if too else [])
    for step in STEPS
    for too in (False, True)
]


def sink_of(name: str, port: int, orders: str = "") -> ConnectorSink:
    """The sink, in every process; at a step that ``orders`` has a file of, the sink's program is killed."""
    if orders:
        at_each(lambda step: kill(Path(orders), step.name))
    return ConnectorSink(f"127.0.0.1:{port}", name=name, checkpoint="", give_up_after=SECONDS, **SETTINGS)


def kill(orders: Path, step: str) -> None:
    try:
        os.rename(orders / step, orders / f"{step}.done")
    except FileNotFoundError:
        return
    pid = int((orders / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: int((orders / "pid").read_text()) != pid)


def serve(to: str, port: int, place: str) -> None:
    """The program, which says who it is."""
    new = Path(place, f"pid.{os.getpid()}")
    new.write_text(str(os.getpid()))
    new.rename(Path(place, "pid"))
    terse.run(to, port)


class Stage:
    """The program, and the processes that send to it."""

    def __init__(self, folder: Path, lives: Lives) -> None:
        self.lives = lives
        self.to, self.orders, self.port = folder / "out", folder / "orders", lasting_port()
        self.orders.mkdir()
        lives.serve(f"{ME}:serve", self.orders, to=str(self.to), port=self.port, place=str(self.orders))
        self.subject = Subject(f"{ME}:sink_of", lambda name: terse.committed(self.to, name), {"port": self.port})

    def deliver(self, folder: Path, name: str, batches: list[int], *, dies: bool, retry: bool = True) -> None:
        """A driver's life; it kills the program where the orders say so, and with ``dies`` itself."""
        (folder / "orders").mkdir(exist_ok=True)
        status, text = self.lives.live(
            factory=f"{ME}:sink_of",
            settings={"port": self.port, "orders": str(self.orders)},
            name=name,
            checkpoint=str(folder / "checkpoint"),
            orders=str(folder / "orders"),
            retry=retry,
            group=True,
            batches=batches,
        )
        assert status == (-signal.SIGKILL if dies else 0), text


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("terse")
    with Lives(folder / "lives", ME) as lives:
        yield Stage(folder, lives)


@pytest.fixture(autouse=True)
def nothing_of_ours_ends_it(stage: Stage) -> Iterator[None]:
    before = terse.deaths(stage.to)
    yield
    assert terse.deaths(stage.to) == before


@pytest.mark.parametrize("case", CASES)
def test_each_batch_is_delivered_once_after_a_death_of_any_process_at_any_step(
    stage: Stage, case: Case, tmp_path: Path
) -> None:
    sweep(stage.lives, stage.subject, case, tmp_path)


@pytest.mark.parametrize(("step", "batch"), KILLED)
def test_the_sink_dies_at_each_step_and_says_0_afterwards(
    stage: Stage, step: SinkStep, batch: int, tmp_path: Path
) -> None:
    name = f"killed-{step.name}-{batch}x"
    for number in range(3):
        if number == batch:
            (stage.orders / step.name).touch()
        stage.deliver(tmp_path, name, [number], dies=False)
    (stage.orders / f"{step.name}.done").unlink()
    _each_row_once(stage, name)


@pytest.mark.parametrize(("step", "too"), FIRST)
def test_everybody_dies_in_the_very_first_batch(stage: Stage, step: SinkStep, too: bool, tmp_path: Path) -> None:
    """Nothing is committed yet: the sink's reference counts the rows of a dead task."""
    name = f"first-{step.name}-{int(too)}x"
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / step.name).touch()
    if too:
        (stage.orders / step.name).touch()
    stage.deliver(tmp_path, name, [0], dies=True, retry=False)
    (stage.orders / step.name).unlink(missing_ok=True)
    for number in range(3):
        stage.deliver(tmp_path, name, [number], dies=False)
    _each_row_once(stage, name)


def _each_row_once(stage: Stage, name: str) -> None:
    assert sorted(terse.committed(stage.to, name)) == sorted(row for batch in range(3) for row in rows_of(batch))


def coordinator(stage: Stage, folder: Path, name: str) -> tuple[Coordinator, ConnectorSink]:
    sink = sink_of(name, stage.port)
    return Coordinator(sink, DecisionLog(str(folder), name)), sink


def deliver(driver: Coordinator, sink: ConnectorSink, batch: int, partitions: int = 2) -> None:
    def run(number: int) -> list[Vote]:
        return [vote(sink, number, one, pieces(partition_rows(number, one))) for one in range(partitions)]

    driver.deliver(batch, run)


def test_after_a_no_the_sink_is_told_to_forget(stage: Stage, tmp_path: Path) -> None:
    driver, sink = coordinator(stage, tmp_path, "refused")
    deliver(driver, sink, 0)
    (stage.to / "refused-1.refuse").touch()

    with pytest.raises(SinkError, match=r"batch 1 is aborted, because of partition 1: sink .* votes to abort"):
        deliver(driver, sink, 1)

    assert [list(terse.Log(stage.to / f"refused-{one}.log").prepared()) for one in (0, 1)] == [[], []]
    deliver(driver, sink, 1)
    wanted = [row for one in (0, 1) for batch in (0, 1) for row in partition_rows(batch, one)]
    assert list(terse.committed(stage.to, "refused")) == wanted


def test_a_partition_that_was_not_there_for_long_goes_on_where_it_was(stage: Stage, tmp_path: Path) -> None:
    """The log keeps few batches, and where every output ends."""
    sink = sink_of("seldom", stage.port)
    for batch, partitions in enumerate([2, 1, 1, 1, 2]):
        deliver(Coordinator(sink, DecisionLog(str(tmp_path), "seldom", keep=2)), sink, batch, partitions)

    assert list(terse.committed(stage.to, "seldom"))[-6:] == partition_rows(0, 1) + partition_rows(4, 1)


def test_a_transaction_of_a_later_try_is_not_changed(stage: Stage, tmp_path: Path) -> None:
    """A driver that counted as dead continues, and its tasks must not abort transactions that its successor may have
    committed."""
    old, new = sink_of("twice", stage.port), sink_of("twice", stage.port)
    old.begin(0, 0, alone=True)
    new.begin(0, 2, alone=True)
    prepared = new.prepare(Transaction.new("twice", 0, 0), pieces(["of the new"]))

    with pytest.raises(SinkError, match=r"prepared, of a later try; run one query per checkpoint"):
        old.prepare(Transaction.new("twice", 0, 0), pieces(["of the old"]))
    new.commit(0, [prepared])
    assert list(terse.committed(stage.to, "twice")) == ["of the new"]


def test_another_programs_transaction_is_left_alone(stage: Stage) -> None:
    async def opened() -> SinkClient:
        async with asyncio.timeout(SECONDS):
            while True:
                # The program may still be starting; its port refuses meanwhile.
                with contextlib.suppress(TransportError):
                    return await SinkClient.open(("127.0.0.1", stage.port), "shared-0", ConnectionSettings(**SETTINGS))
                await asyncio.sleep(POLL_SECONDS)

    async def run() -> None:
        async with await opened() as client:
            await client.send([b"x"])
            assert (await client.vote("app-w-initializer:c_id=5"))[0]

    asyncio.run(run())
    sink = sink_of("shared", stage.port)
    with pytest.raises(SinkError, match="'app-w-initializer:c_id=5' prepared, a transaction that is not of this sink"):
        sink.prepare(Transaction.new("shared", 0, 0), pieces(["x"]))


def test_a_greeting_that_ends_a_sink_is_explained(stage: Stage, tmp_path: Path) -> None:
    """Such a sink closes without an answer: the error names the content of HELLO."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        sink = ConnectorSink(f"127.0.0.1:{port}", name="orders", checkpoint="", give_up_after=0.0, version="9")
        sink.remember({"ends": {"0": {}}})

        async def close_at_once() -> None:
            loop = asyncio.get_running_loop()
            listener.setblocking(False)
            connection, _ = await loop.sock_accept(listener)
            await loop.sock_recv(connection, 1000)
            connection.close()

        async def run() -> object:
            asked = asyncio.get_running_loop().run_in_executor(None, sink.recover)
            await close_at_once()
            return (await asyncio.gather(asked, return_exceptions=True))[0]

        error = asyncio.run(run())
    assert isinstance(error, SinkError)
    assert "closed the connection of orders-0 before it answered HELLO" in error.message
    assert "this HELLO said version '9' and no cookie (version=, cookie=)" in error.message
