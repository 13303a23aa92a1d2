"""The limit of open files, for processes with very many connections."""

from __future__ import annotations

import resource

BESIDE = 200
"""Files that a process opens beside its connections; more than it needs."""


def raise_open_files(connections: int) -> None:
    """Raise this process's limit as far as needed. Raises ValueError when the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + BESIDE
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def most_connections() -> int:
    """How many connections a process of this user may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 30 if hard == resource.RLIM_INFINITY else max(0, hard - BESIDE)
