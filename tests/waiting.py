"""How tests wait for what announces itself in no other way than by being so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.01


def eventually(condition: Callable[[], Any], what: str = "", *, seconds: float = 60.0) -> Any:
    """Wait until a condition holds, and return its value. ``what`` names it in the failure after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s: {what or condition}"
        time.sleep(POLL_SECONDS)
    return found
