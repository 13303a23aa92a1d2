"""Measures what ``fsync`` costs a batch of an application, and what it would cost to sync single files instead.

``python -m proving.fsync_price`` starts Spark on this machine with one gateway and publishes events one after another,
each in a batch of its own. The batches take turns: nothing is synced, the file system is synced, or each new file of
the checkpoint and each of their folders. So the three are measured side by side, on the disk of ``--folder``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from proving.quiet_application import STREAM, quiet_application
from wallaroo_spark.checkpoint import files
from wallaroo_spark.engine.application import query
from wallaroo_spark.sidecar.syncing import sync, sync_file_system

FIRST = 6
"""Events that are published before the measurement, in which Spark loads classes."""


class Turns:
    """In place of the sync before a commit: another way of it in each batch."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._ways: dict[str, Callable[[str], int]] = {
            "nothing": lambda folder: 0,
            "syncfs": _whole,
            "single files": self._single,
        }
        self._turn = 0
        self.way = ""
        self.seconds: dict[str, list[float]] = {way: [] for way in self._ways}
        """The time of each sync."""
        self.calls: dict[str, list[int]] = {way: [] for way in self._ways}
        """The number of its system calls."""
        self.not_counted = 0.0
        """The time that the last batch has spent for the measurement."""

    def __call__(self, folder: str) -> None:
        """Sync in the way whose turn it is. The files of other turns count as old."""
        self.way = list(self._ways)[self._turn % len(self._ways)]
        self._turn += 1
        began = time.perf_counter()
        calls = self._ways[self.way](folder)
        self.seconds[self.way].append(time.perf_counter() - began)
        self.calls[self.way].append(calls)
        # Nothing that another turn has left unsynced is charged to the next one.
        began = time.perf_counter()
        sync_file_system(folder)
        self._known = dict(_files(folder))
        self.not_counted = time.perf_counter() - began

    def _single(self, folder: str) -> int:
        found = dict(_files(folder))
        new = [path for path, modified in found.items() if self._known.get(path) != modified]
        wanted = [*new, *{os.path.dirname(path) for path in new}]
        for path in wanted:
            sync(path)
        return len(wanted)


def _whole(folder: str) -> int:
    sync_file_system(folder)
    return 1


def _files(folder: str) -> list[tuple[str, int]]:
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                found.append((os.path.join(path, name), os.stat(os.path.join(path, name)).st_mtime_ns))
            except FileNotFoundError:
                continue
    return found


def measure(folder: Path, events: int) -> tuple[Turns, dict[str, list[float]], list[float]]:
    """The syncs, the time of each publish by the way in which its batch was synced, and the times of commits' syncs."""
    from wallaroo_spark.client import Client, Event

    turns = Turns()
    setattr(query, "sync_file_system", turns)  # noqa: B010  # the name is imported there
    commits = _timed_commits()
    times: dict[str, list[float]] = {way: [] for way in turns.seconds}
    with quiet_application(folder, fsync=True) as running, Client(running.addresses()) as client:
        for number in range(FIRST + events):
            began = time.perf_counter()
            client.publish(STREAM, Event("bench.event", number))
            if number >= FIRST:
                times[turns.way].append(time.perf_counter() - began - turns.not_counted)
    return turns, times, commits


def _timed_commits() -> list[float]:
    """The times that the driver takes to sync the files of a commit; gateways do it at the same time."""
    times: list[float] = []
    sync_commit = files.sync_log_file

    def timed(log: str, batch: int) -> None:
        began = time.perf_counter()
        sync_commit(log, batch)
        times.append(time.perf_counter() - began)

    setattr(files, "sync_log_file", timed)  # noqa: B010  # a function is replaced for the measurement
    return times


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=60, help="events to publish (default: 60)")
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        turns, times, commits = measure(Path(folder), given.events)
    for way, took in times.items():
        sync_ms = statistics.median(turns.seconds[way][FIRST // 3 :]) * 1000
        print(
            f"{way}: {len(took)} events, p50 {statistics.median(took) * 1000:.0f} ms from publish to offset, of which "
            f"{sync_ms:.1f} ms in {statistics.median(turns.calls[way]):.0f} syncs before the commit"
        )
    print(f"the files of a commit: {statistics.median(commits) * 1000:.1f} ms")
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
