"""The entries of systemd's journal, from files that systemd's own program writes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from proving.servers.packages.debian import environment, unpacked
from tests.bridges.support import Bridging, refused
from tests.waiting import SECONDS
from wallaroo_spark.bridges.bridge import position_of
from wallaroo_spark.testing import FakeWorker

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("journalctl") is None, reason="this machine has no journalctl"),
]
PROGRAM = "lib/systemd/systemd-journal-remote"
ENTRY = """\
__REALTIME_TIMESTAMP={micros}
__MONOTONIC_TIMESTAMP={number}
_BOOT_ID=00000000000000000000000000000001
MESSAGE={number}
_SYSTEMD_UNIT={unit}

"""


class Journal:
    """A journal of one file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "some.journal"
        self.programs = unpacked("systemd-journal-remote", [PROGRAM])

    def write(self, first: int, last: int, unit: str = "a.service") -> None:
        """Add entries, whose messages are numbers."""
        entries = (ENTRY.format(micros=1_700_000_000_000_000 + n, number=n, unit=unit) for n in range(first, last))
        command = [str(self.programs / PROGRAM), f"--output={self.file}", "-"]
        text = "".join(entries).encode()
        subprocess.run(command, input=text, env=environment(self.programs), check=True, capture_output=True)

    def source(self, *options: str) -> tuple[str, ...]:
        return ("journal", "--file", str(self.file), *options)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def messages(bridging: Bridging) -> list[int]:
    return [int(json.loads(one)["MESSAGE"]) for one in bridging.values()]


def test_entries_are_sent_once_although_the_bridge_is_killed(
    journal: Journal, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *journal.source())
    journal.write(0, 1000)
    bridging.killed_before_the_commit(100)
    with bridging.again():
        bridging.wait(1000)
        journal.write(1000, 1001)
        bridging.wait(1001)
    with bridging.again():
        journal.write(1001, 1002)
        bridging.wait(1002)

    assert messages(bridging) == [*range(1002)]
    last = worker.committed.to_pylist()[-1]
    assert position_of(last["message_id"]) == 1002
    assert last["event_time"].timestamp() == 1_700_000_000.001001


def test_matches_select_entries(journal: Journal, worker: FakeWorker, tmp_path: Path) -> None:
    journal.write(0, 3)
    journal.write(3, 5, "b.service")
    bridging = Bridging(worker, tmp_path, *journal.source("_SYSTEMD_UNIT=b.service"))
    with bridging.running(), worker.committing():
        bridging.wait(2)
    assert messages(bridging) == [3, 4]


def test_a_journal_that_is_made_again_is_refused(journal: Journal, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *journal.source())
    journal.write(0, 2)
    with worker.committing():
        with bridging.running():
            bridging.wait(2)
        journal.file.unlink()
        journal.write(0, 5)
        assert "the journal was deleted and made again" in refused(bridging)
    assert messages(bridging) == [0, 1]


def test_a_journal_that_is_not_there_is_named(worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, "journal", "--file", str(tmp_path / "none"), "--give-up-after", "1")
    with bridging.running() as process:
        assert process.wait(SECONDS) == 1
    assert "source 'journal' has not answered" in bridging.output
    assert "No such file" in bridging.output
