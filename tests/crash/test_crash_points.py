"""A process dies at every named step, one after the other; each time all goes on, and nothing is lost or repeated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest

from tests.crash.deaths import DIRECTORY, OF_THE_DRIVER, Deaths
from tests.receiver.driver import BY_SPARK
from tests.receiver.drivers import Drivers
from tests.receiver.support import QUICK, Feeders
from tests.waiting import SECONDS, eventually
from wallaroo_spark.checkpoint.files import CheckpointFiles
from wallaroo_spark.connector import BlockingConnector, BlockingStream
from wallaroo_spark.references import flatten
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.steps import Step

A_ROUND = 40
"""Messages that each stream sends around each death."""
PATIENT = replace(QUICK, give_up_after=600)
"""A connector waits for the next driver, however long that takes to start."""
A_SHORT_STREAM = 10
"""Messages of each stream that ends in a round."""
BEFORE_THE_COMMIT = {Step.OFFSETS_WRITTEN, Step.SINK_WRITTEN}
"""Steps at which a batch is planned and not committed."""
ALL = tuple(Step)
SOME = (
    Step.BUFFERED,
    Step.RANGE_HALF_READ,
    Step.SINK_WRITTEN,
    Step.COMMITS_WRITTEN,
    Step.ACK_SENT,
)
"""One at least of worker, reading task, sink and driver, before and behind the commit.

A sink that has written is before the commit, too, behind the offsets that the source has planned.
"""
SENDERS = {"shop-a": ("draft-le", ["a", "b"]), "shop-b": ("draft-be", ["c", "d"]), "shop-c": ("v3", ["e", "f"])}


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    with Drivers(tmp_path) as opened:
        yield opened


def newest(log: Path) -> int:
    return max((int(path.name) for path in log.iterdir() if path.name.isdigit()), default=-1)


def connect(feeders: Feeders, port: int) -> dict[str, BlockingConnector]:
    workers = f"127.0.0.1:{port},127.0.0.1:{port + 1}"
    return {
        instance: feeders.connect(instance, workers, revision=revision, retry=PATIENT)
        for instance, (revision, _) in SENDERS.items()
    }


def send_a_round(streams: list[BlockingStream], wanted: dict[str, list[str]], last: int) -> None:
    """Send each stream's messages up to ``last``. This waits for credit, and so perhaps for the next driver."""
    for stream in streams:
        for message in range(last - A_ROUND + 1, last + 1):
            send(stream, wanted, message)


def send(stream: BlockingStream, wanted: dict[str, list[str]], message: int) -> None:
    wanted.setdefault(stream.name, []).append(f"{stream.name} {message}")
    stream.send(wanted[stream.name][-1].encode(), id=message)


def send_short_streams(
    connectors: dict[str, BlockingConnector], wanted: dict[str, list[str]], round_: str
) -> list[BlockingStream]:
    """One stream of each instance, opened and ended."""
    streams = [connector.open(f"{instance} {round_}") for instance, connector in connectors.items()]
    for stream in streams:
        for message in range(1, A_SHORT_STREAM + 1):
            send(stream, wanted, message)
        stream.end()
    return streams


def known_streams(checkpoint: Path) -> set[int]:
    """The ids of the streams whose references the last commit has."""
    committed = CheckpointFiles(str(checkpoint)).progress("orders").committed
    assert committed is not None
    return {key.stream_id for key in flatten(committed.references)}


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("steps", "retention", "by"),
    [
        pytest.param(SOME, 0, {}, id="some"),
        pytest.param(ALL, 0, {}, id="all", marks=pytest.mark.long),
        pytest.param(ALL, 0, {BY_SPARK: "1"}, id="all, of a query that Spark has started", marks=pytest.mark.long),
        pytest.param(ALL, 1, {}, id="all, with a retention", marks=pytest.mark.long),
    ],
)
def test_nothing_is_lost_or_repeated_after_a_death_at_any_step(
    drivers: Drivers, feeders: Feeders, tmp_path: Path, steps: tuple[Step, ...], retention: int, by: dict[str, str]
) -> None:
    """With a retention, each round also has streams that end; they are forgotten while processes die."""
    port, deaths = lasting_port(range(2)), Deaths(tmp_path / "deaths")
    variables = {DIRECTORY: str(tmp_path / "deaths"), **by}
    # A driver takes a while to be ready, so the next one is started while one runs; nothing kills the last one.
    to_start = 1 + len(OF_THE_DRIVER.intersection(steps))
    waiting = [drivers.start(port, str(retention), **variables)]

    def next_driver() -> Popen[bytes]:
        nonlocal to_start
        following = waiting.pop(0)
        to_start -= 1
        if to_start:
            waiting.append(drivers.start(port, str(retention), **variables))
        deaths.driver_is(following.pid)
        drivers.go(following)
        return following

    driver = next_driver()
    connectors = connect(feeders, port)
    streams = [connectors[instance].open(name) for instance, (_, names) in SENDERS.items() for name in names]
    wanted: dict[str, list[str]] = {stream.name: [] for stream in streams}
    short: list[BlockingStream] = []

    for number, step in enumerate(steps):
        last = (number + 1) * A_ROUND
        # Nothing moves any more, so the next process reaches the step because of the messages that are sent now.
        deaths.order(step)
        sent = feeders.run(lambda last=last: send_a_round(streams, wanted, last))
        if retention:
            ended = feeders.run(lambda step=step: short.extend(send_short_streams(connectors, wanted, step.name)))
        eventually(lambda step=step, driver=driver: deaths.happened(step) or driver.poll() is not None, seconds=300)
        assert deaths.happened(step), f"{step}: {drivers.log(driver)}"
        if step in OF_THE_DRIVER:
            driver.wait()
            planned, committed = (newest(tmp_path / "checkpoint" / log) for log in ("offsets", "commits"))
            assert step not in BEFORE_THE_COMMIT or planned == committed + 1, step
            driver = next_driver()
        sent.result(SECONDS)
        eventually(lambda last=last: all(stream.acknowledged == last for stream in streams), seconds=300)
        if retention:
            ended.result(SECONDS)
            eventually(lambda: all(stream.acknowledged == A_SHORT_STREAM for stream in short), seconds=300)
        assert drivers.written() == wanted, step

    if retention:
        # An end that a worker had not reported before it died is never recorded. These are reported.
        newest_ended = send_short_streams(connectors, wanted, "the last")
        messages = itertools.count((len(steps) + 1) * A_ROUND)

        def forgotten() -> bool:
            if not streams[0].unacknowledged:
                send(streams[0], wanted, next(messages))
            return not known_streams(tmp_path / "checkpoint") & {stream.id for stream in newest_ended}

        eventually(lambda: all(stream.acknowledged == A_SHORT_STREAM for stream in newest_ended), seconds=300)
        eventually(forgotten, seconds=300)
        kept = known_streams(tmp_path / "checkpoint") & {stream.id for stream in short}
        print(f"{len(short) - len(kept)} of {len(short)} streams that ended around a death are forgotten")
        streams[0].flushed()
        assert drivers.written() == wanted
    drivers.end(driver)
