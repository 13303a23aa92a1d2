"""Unexpected errors: any call that a worker's state makes may fail, as any allocation may."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import wallaroo_spark

_PACKAGE = Path(wallaroo_spark.__file__).parent
_ROOMS = tuple(str(_PACKAGE / room) + "/" for room in ("worker", "columnar", "protocol"))


class Failing:
    """Makes one call fail, ``calls`` calls from now; calls by the worker's own code and to it count."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    @property
    def failed(self) -> bool:
        """Whether the call has failed."""
        return self.left <= 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls inside this block."""
        before = sys.unraisablehook
        sys.unraisablehook = self._not_raised
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)
            sys.unraisablehook = before

    def _not_raised(self, unraisable: sys.UnraisableHookArgs) -> None:
        """The interpreter has dropped an error, as it does when a generator that it closes raises one.

        When it is the injected error, no code has seen it, so the next call fails too. Any other error is a defect.
        """
        if not isinstance(unraisable.exc_value, MemoryError):
            sys.__unraisablehook__(unraisable)
            return
        self.left = 1
        # The interpreter has unset the function that raised.
        sys.setprofile(self._look)

    def _look(self, frame: FrameType, what: str, called: Any) -> None:
        if what in ("call", "c_call") and not self.failed and frame.f_code.co_filename.startswith(_ROOMS):
            self.left -= 1
            if self.failed:
                raise MemoryError(f"in {frame.f_code.co_qualname}, line {frame.f_lineno}")
