"""Waiting in tests for conditions that send no event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

SECONDS = 120.0
"""Limit of a wait that has an end of its own, in seconds: it only ends a test that hangs, also on a slow machine.

It is below the limit of a whole test, so that the failure names the wait.
"""
POLL_SECONDS = 0.01
"""Pause between two looks at a condition, in seconds."""


def eventually(
    condition: Callable[[], Any], name: str = "", *, seconds: float = SECONDS, pause: float = POLL_SECONDS
) -> Any:
    """Wait until a condition holds, and return its value. The failure after ``seconds`` tells ``name``.

    ``pause`` is longer where a look costs much.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s: {name or condition}"
        time.sleep(pause)
    return found


async def until(condition: Callable[[], Any], name: str = "") -> Any:
    """As :func:`eventually`, while the tasks of the event loop go on."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {SECONDS:g} s: {name or condition}"
        await asyncio.sleep(POLL_SECONDS)
    return found
