"""A process dies at every named step, one after the other; each time all goes on, and nothing is lost or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from proving.ports import lasting_port
from tests.crash.deaths import DIRECTORY, OF_THE_DRIVER, Deaths
from tests.receiver.drivers import Drivers
from tests.receiver.support import Feeders
from tests.waiting import SECONDS, eventually
from wallaroo_spark.connector import BlockingStream
from wallaroo_spark.steps import Step

A_ROUND = 40
"""Messages that each stream sends around each death."""
BEFORE_THE_COMMIT = {Step.OFFSETS_WRITTEN, Step.SINK_WRITTEN}
"""Steps at which a batch is planned and not committed."""
SENDERS = {"shop-a": ("draft-le", ["a", "b"]), "shop-b": ("draft-be", ["c", "d"]), "shop-c": ("v3", ["e", "f"])}


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    with Drivers(tmp_path) as opened:
        yield opened


def newest(log: Path) -> int:
    return max((int(path.name) for path in log.iterdir() if path.name.isdigit()), default=-1)


def open_streams(feeders: Feeders, port: int) -> list[BlockingStream]:
    workers = f"127.0.0.1:{port},127.0.0.1:{port + 1}"
    return [
        connector.open(name)
        for instance, (revision, names) in SENDERS.items()
        for connector in [feeders.connect(instance, workers, revision=revision)]
        for name in names
    ]


def send_a_round(streams: list[BlockingStream], wanted: dict[str, list[str]], last: int) -> None:
    """Send each stream's messages up to ``last``. This waits for credit, and so perhaps for the next driver."""
    for stream in streams:
        for message in range(last - A_ROUND + 1, last + 1):
            wanted[stream.name].append(f"{stream.name} {message}")
            stream.send(wanted[stream.name][-1].encode(), id=message)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_repeated_after_a_death_at_any_step(
    drivers: Drivers, feeders: Feeders, tmp_path: Path
) -> None:
    port, deaths = lasting_port(range(2)), Deaths(tmp_path / "deaths")
    variables = {DIRECTORY: str(tmp_path / "deaths")}
    # One more than runs, because each takes a while to be ready.
    waiting = [drivers.start(port, **variables) for _ in range(2)]

    def next_driver() -> Popen[bytes]:
        following = waiting.pop(0)
        waiting.append(drivers.start(port, **variables))
        deaths.driver_is(following.pid)
        drivers.go(following)
        return following

    driver = next_driver()
    streams = open_streams(feeders, port)
    wanted: dict[str, list[str]] = {stream.name: [] for stream in streams}

    for number, step in enumerate(Step):
        last = (number + 1) * A_ROUND
        # Nothing moves any more, so the next process reaches the step because of the messages that are sent now.
        deaths.order(step)
        sent = feeders.run(lambda last=last: send_a_round(streams, wanted, last))
        eventually(lambda step=step, driver=driver: deaths.happened(step) or driver.poll() is not None, seconds=90)
        assert deaths.happened(step), f"{step}: {drivers.log(driver)}"
        if step in OF_THE_DRIVER:
            driver.wait()
            planned, committed = (newest(tmp_path / "checkpoint" / log) for log in ("offsets", "commits"))
            assert step not in BEFORE_THE_COMMIT or planned == committed + 1, step
            driver = next_driver()
        sent.result(SECONDS)
        eventually(lambda last=last: all(stream.acknowledged == last for stream in streams), seconds=120)
        assert drivers.written() == wanted, step

    drivers.end(driver)
