"""Sources of one receiver in one query read the same: the one that Spark asks first plans, the others follow.

A stream that is joined with itself, or loaded twice, has a source for each place, with a process of its own beside the
driver. Did each plan by itself, they would stand at different messages of a batch, of which nobody could tell which
comes first where ids have no order; and in an AvailableNow run one would wait for acknowledgements that need the
other's batch. Spark asks the sources of a query one after another, always in the same order, so a file that they share
is enough: the source that holds its lock leads, and writes start and end of each batch that it plans into the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from wallaroo_spark.errors import one_line
from wallaroo_spark.reference_versions import changed
from wallaroo_spark.references import Reference, References

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no such locks; a source stands alone there
    fcntl = None  # type: ignore[assignment]

log = one_line(logging.getLogger("wallaroo_spark.source"))

SUCCESSION_SECONDS = 1.0
"""How long a source waits, once, for the leader of a query that has just ended to give up its lock."""
FORGOTTEN_SECONDS = 86_400.0
"""Files that nobody has written to for so long are removed; who has one open keeps it."""
_PAUSE_SECONDS = 0.05
_GREATEST_BYTES = 1 << 30


class Agreement:
    """The part of one source. ``secret`` is known to the sources of one receiver alone.

    Where files cannot be shared, each source leads, and nothing worse comes of it than a smaller common part.
    """

    def __init__(self, receiver: str, secret: str, folder: Path | None = None) -> None:
        self._leads: bool | None = None
        self._said: dict[str, Any] | None = None
        self._descriptor: int | None = None
        # One driver is one parent, so that those of another with the same receiver do not meet.
        name = hashlib.sha256(f"{os.getppid()} {receiver} {secret}".encode()).hexdigest()[:32]
        try:
            self._descriptor = _open(folder or _folder(), name)
        except OSError as error:
            log.warning("the sources of one query cannot agree on their plans: %s", error)

    def leads(self) -> bool:
        """Whether this source plans; settled at the first call, unless the leader goes."""
        if self._leads is None:
            until = time.monotonic() + SUCCESSION_SECONDS
            while not self._take() and time.monotonic() < until:
                time.sleep(_PAUSE_SECONDS)
        return self._leads or self._take()

    def say(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """The leader has planned from ``start`` up to ``end``."""
        if end == self._said or self._descriptor is None:
            return
        self._said = end
        text = json.dumps({"start": start, "end": end}).encode()
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

    def heard(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The start and the end of the batch that the leader planned last; None before its first."""
        if self._descriptor is None:
            return None
        try:
            found = json.loads(os.pread(self._descriptor, _GREATEST_BYTES, 0))
            return found["start"], found["end"]
        except (OSError, ValueError, KeyError):
            return None

    def close(self) -> None:
        """Take part no more."""
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
    """The changes of a follower's batch from ``start`` on, when its leader's ends at ``end``: no increasing id goes
    back.
    """
    found = {}
    for scope, streams in changed(start, end).items():
        known = start.get(scope, {})
        kept = {stream: reference for stream, reference in streams.items() if not _behind(reference, known.get(stream))}
        found[scope] = kept if increasing else dict(streams)
    return {scope: streams for scope, streams in found.items() if streams}


def _behind(reference: Reference, known: Reference | None) -> bool:
    return isinstance(known, int) and isinstance(reference, int) and reference < known


def _folder() -> Path:
    """A folder of this user's own."""
    folder = Path(tempfile.gettempdir()) / f"wallaroo-{os.getuid() if hasattr(os, 'getuid') else 'sources'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        raise OSError(f"{folder} is another user's")
    return folder


def _open(folder: Path, name: str) -> int:
    if fcntl is None:
        raise OSError("this system has no locks on files")
    for old in folder.iterdir():
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
