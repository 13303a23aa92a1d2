"""How many files the worker's process may have open: each connection takes one.

Source: ``docs/architecture.md#rules``, rule 8: what cannot work is refused with the way out.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass

if sys.platform != "win32":
    import resource

RESERVED = 256
"""Open files that are kept for everything but connections: the inner port, Redis, Spark's pipes and libraries.

A worker on Linux had 41 open besides its connections (one reading task, an embedded Redis).
"""
HANDSHAKES = 64
"""Connections that may be open beyond the sessions, for peers that have not said HELLO yet and those that are refused.
"""


@dataclass(frozen=True)
class OpenFiles:
    """The limit of open files of this process; None where there is none."""

    limit: int | None

    @property
    def connections(self) -> int | None:
        """How many connections there is room for; None is no limit."""
        return None if self.limit is None else max(HANDSHAKES + 1, self.limit - RESERVED)

    @property
    def sessions(self) -> int | None:
        """How many sessions there is room for; None is no limit."""
        return None if self.connections is None else self.connections - HANDSHAKES

    def warning(self, max_sessions: int) -> str | None:
        """What to tell an operator whose ``maxSessions`` cannot be reached; None if it can."""
        if self.sessions is None or self.sessions >= max_sessions:
            return None
        return (
            f"maxSessions is {max_sessions}, and a process on this host may have {self.limit} files open, so a worker "
            f"here takes {self.sessions} sessions; {self.way_out(max_sessions)}"
        )

    def way_out(self, max_sessions: int) -> str:
        """How to have that many sessions."""
        return (
            f"raise the hard limit of open files (ulimit -Hn) of executors to {max_sessions + HANDSHAKES + RESERVED}, "
            "or lower maxSessions"
        )


def raise_limit(max_sessions: int) -> OpenFiles:
    """Raise this process's own limit as far as ``max_sessions`` need and the hard limit allows; the limit then."""
    if sys.platform == "win32":
        return OpenFiles(None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_sessions + HANDSHAKES + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        # A system may refuse what it seems to allow; then the limit stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OpenFiles(None if soft == resource.RLIM_INFINITY else soft)
