"""The limit of open files of the worker's process, and the sessions that it allows: each connection is an open file.

Source: ``docs/architecture.md#rules``, rule 8.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

RESERVED = 256
"""Open files that are kept for everything but connections: the inner port, Redis, Spark's pipes and libraries.

A worker on Linux had 41 open besides its connections (one reading task, an embedded Redis).
"""
HANDSHAKES = 64
"""Connections beyond the sessions that may be open: peers before their HELLO, and refused peers."""


@dataclass(frozen=True)
class OpenFiles:
    """The limit of open files of this process, and the limits that follow from it."""

    limit: int | None
    """The number of files; None: there is no limit."""

    @property
    def connections(self) -> int | None:
        """The most connections; None: there is no limit."""
        return None if self.limit is None else max(HANDSHAKES + 1, self.limit - RESERVED)

    @property
    def sessions(self) -> int | None:
        """The most sessions; None: there is no limit."""
        return None if self.connections is None else self.connections - HANDSHAKES

    def warning(self, max_sessions: int) -> str | None:
        """The warning for the operator if the process cannot have ``maxSessions`` sessions; None if it can."""
        if self.sessions is None or self.sessions >= max_sessions:
            return None
        return (
            f"maxSessions is {max_sessions}, and a process on this host may have {self.limit} files open, so a worker "
            f"here takes {self.sessions} sessions; raise the hard limit of open files (ulimit -Hn) of executors to "
            f"{max_sessions + HANDSHAKES + RESERVED}, or lower maxSessions"
        )


def raise_limit(max_sessions: int) -> OpenFiles:
    """Raise this process's limit as far as ``max_sessions`` needs and the hard limit allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_sessions + HANDSHAKES + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        # A system may refuse a limit that it seems to allow; then the limit is not changed.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OpenFiles(None if soft == resource.RLIM_INFINITY else soft)
