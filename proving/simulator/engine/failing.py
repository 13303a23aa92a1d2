"""An error where nobody expects one: any call that a worker's state makes may fail, as any allocation may."""

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
    """Lets one call fail: that which comes ``calls`` calls later, made by the worker's own code or of it."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    @property
    def failed(self) -> bool:
        """Whether it has happened."""
        return self.left <= 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Calls within count."""
        before = sys.unraisablehook
        sys.unraisablehook = self._not_raised
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)
            sys.unraisablehook = before

    def _not_raised(self, unraisable: sys.UnraisableHookArgs) -> None:
        """The interpreter has dropped an error, as it does with one from a generator that it closes.

        Nobody has seen our own, so the next call fails in its place. Any other error is a defect.
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
