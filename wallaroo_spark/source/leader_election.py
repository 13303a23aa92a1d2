"""The sources of one receiver in one query plan the same batches: the first that Spark asks leads, the others follow.

A query that joins a stream with itself, or loads it twice, has one source for each use, and each source runs in its own
process beside the driver. If each source planned alone, the sources would end a batch at different messages. Where ids
have no order, nobody could tell which of these messages comes first. In an AvailableNow run one source would wait for
ACKs that need the other source's batch.

Spark asks the sources of a query one after another, always in the same order. So a file that the sources share is
enough: the source that holds the file's lock leads, and writes the start and the end of each batch that it plans into
the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from wallaroo_spark.errors import one_line
from wallaroo_spark.inner.client import private_folder
from wallaroo_spark.references import Reference, References, changed, flatten, nest, references_of

log = one_line(logging.getLogger("wallaroo_spark.source"))

SUCCESSION_SECONDS = 1.0
"""How long a source waits, once, until the leader of a query that has just ended releases its lock. A choice."""
FORGOTTEN_SECONDS = 86_400.0
"""Age, since the last write, at which a file is removed; a process that has it open can still use it. A choice."""
_PREFIX = "leader-"
"""The beginning of the files' names. Workers have sockets in the same folder."""
_PAUSE_SECONDS = 0.05
"""Pause between two attempts to take the lock."""
_GREATEST_BYTES = 1 << 30
"""Most bytes that are read of the file. A choice, far above the length of any batch's start and end."""


class LeaderElection:
    """One source's side of the election. ``secret`` is known only to the sources of one receiver.

    Where the sources cannot share a file, each of them leads. Then their batches differ, and have fewer messages in
    common.
    """

    def __init__(self, receiver: str, secret: str, folder: Path | None = None) -> None:
        self._leads: bool | None = None
        self._written_end: dict[str, Any] | None = None
        self._descriptor: int | None = None
        # The parent process is the driver: sources of another driver with a receiver of the same name use another file.
        name = _PREFIX + hashlib.sha256(f"{os.getppid()} {receiver} {secret}".encode()).hexdigest()[:32]
        try:
            self._descriptor = _open(folder or private_folder(), name)
        except OSError as error:
            log.warning("a query that reads this receiver more than once plans its sources' batches apart: %s", error)

    def leads(self) -> bool:
        """Whether this source plans. The first call decides; a follower becomes the leader when the leader ends."""
        if self._leads is None:
            until = time.monotonic() + SUCCESSION_SECONDS
            while not self._take() and time.monotonic() < until:
                time.sleep(_PAUSE_SECONDS)
        return self._leads or self._take()

    def write(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Write the batch that the leader has planned, from ``start`` up to ``end``, for the followers."""
        if end == self._written_end or self._descriptor is None:
            return
        self._written_end = end
        text = json.dumps({"start": start, "end": end}).encode()
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

    def read(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The start and the end of the batch that the leader planned last; None before its first batch."""
        if self._descriptor is None:
            return None
        try:
            found = json.loads(os.pread(self._descriptor, _GREATEST_BYTES, 0))
            return found["start"], found["end"]
        except (OSError, ValueError, KeyError):
            return None

    def close(self) -> None:
        """Release the lock and close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> bool:
        self._leads = self._descriptor is None or _locked(self._descriptor)
        if self._leads and self._descriptor is not None:
            # The end that an earlier leader wrote belongs to another query.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        return self._leads


def followed(start: References, end: References, *, increasing: bool) -> dict[str, dict[str, Reference]]:
    """The changes that lead a follower from ``start`` to the end of its leader's batch, ``end``.

    A stream with increasing ids whose reference is beyond ``end`` already is left out: a reference never decreases.
    """
    ahead = flatten(changed(start, end))
    known = references_of(start, ahead)
    return nest({key: one for key, one in ahead.items() if not (increasing and _behind(one, known[key]))})


def _behind(reference: Reference, known: Reference | None) -> bool:
    return isinstance(known, int) and isinstance(reference, int) and reference < known


def _open(folder: Path, name: str) -> int:
    for old in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if old.name != name and time.time() - old.stat().st_mtime > FORGOTTEN_SECONDS:
                old.unlink()
    return os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
