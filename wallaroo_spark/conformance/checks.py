"""A check as a row of a table, what it finds, and the run of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from wallaroo_spark.codes import ENTRIES
from wallaroo_spark.errors import printable
from wallaroo_spark.wiretap.decoding import DecodedFrame

AT_ONCE = 4
"""Checks that run at the same time. A choice: most of a check is waiting, and a program of the user's runs for each."""
SHOWN_BYTES = 64
"""Bytes of a frame that a result has. A choice: two lines."""
_BEFORE = 16
"""Bytes of them in front of the wrong one, where the frame is longer."""
_PAYLOAD_BYTES = 40

P = TypeVar("P")


@dataclass(frozen=True)
class Check(Generic[P]):
    """One row of a table. ``run`` raises :class:`Mismatch` when the peer does not do as the section says."""

    name: str
    does: str
    """What the check does, and what it expects, in a sentence."""
    page: str
    """The section of the page that it rests on."""
    run: Callable[[P], None]
    revisions: tuple[str, ...] = ()
    """The revisions that it is about; none: all."""


class CheckTable(list[Check[P]]):
    """The checks of a kind of peer, in the order of the page."""

    def check(self, name: str, page: str, *revisions: str) -> Callable[[Callable[[P], None]], Callable[[P], None]]:
        """Add the decorated function as a row. Its docstring is what the check does."""

        def add(run: Callable[[P], None]) -> Callable[[P], None]:
            self.append(Check(name, " ".join((run.__doc__ or "").split()), page, run, revisions))
            return run

        return add


class Mismatch(Exception):
    """The peer does not do as the page says: what was expected, what came, and the frame where there is one."""

    def __init__(self, expected: str, came: str, frame: DecodedFrame | None = None, page: str = "") -> None:
        super().__init__(f"expected: {expected}; came: {came}")
        self.expected, self.came, self.frame, self.page = expected, came, frame, page


class NotApplicableError(Exception):
    """The check is not about this peer, for the reason that it says."""


class CheckOutcome(StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class CheckResult:
    """What a check has found."""

    check: str
    does: str
    outcome: CheckOutcome
    page: str
    """The section that says what is right."""
    revision: str = ""
    """The revision in which the check was made, where it is chosen here."""
    expected: str = ""
    came: str = ""
    frame: str = ""
    """The frame with the difference, decoded; empty where there is none."""
    bytes: str = ""
    """The bytes of the frame in hexadecimal, around the wrong one."""
    offset: int | None = None
    """Offset of the wrong byte among the bytes of its direction."""

    def to_json(self) -> dict[str, Any]:
        """The values that are there."""
        return {name: value for name, value in vars(self).items() if value not in ("", None)}


def run_check(check: Check[P], peer: P, revision: str = "") -> CheckResult:
    """Make one check."""
    try:
        check.run(peer)
    except NotApplicableError as reason:
        return CheckResult(check.name, check.does, CheckOutcome.LEFT_OUT, check.page, revision, came=str(reason))
    except Mismatch as found:
        page = found.page or check.page
        result = CheckResult(check.name, check.does, CheckOutcome.FAILED, page, revision, found.expected, found.came)
        return result if found.frame is None else _with_frame(result, found.frame)
    return CheckResult(check.name, check.does, CheckOutcome.PASSED, check.page, revision)


@dataclass(frozen=True)
class CheckPlan:
    """The checks of a peer that are to be made."""

    checks: Sequence[Callable[[], CheckResult]]
    at_once: int = AT_ONCE
    stop: Callable[[], None] = lambda: None
    """Ends the checks that run, when the program is interrupted."""

    def results(self) -> Iterator[CheckResult]:
        """Make the checks; the results come in their order."""
        with ThreadPoolExecutor(self.at_once) as pool:
            try:
                yield from pool.map(lambda check: check(), self.checks)
            except BaseException:
                self.stop()
                raise


def wrong_frame(frame: DecodedFrame) -> Mismatch:
    """A frame that breaks the protocol by itself, or by the states and credits of its session."""
    page = ENTRIES[frame.code].page if frame.code in ENTRIES else "docs/protocol.md#framing"
    return Mismatch(f"a frame that a {frame.sender} may send here", printable(frame.error), frame, page)


def shown(frame: DecodedFrame) -> str:
    """A frame as a line."""
    return printable(frame.text(_PAYLOAD_BYTES))


def _with_frame(result: CheckResult, frame: DecodedFrame) -> CheckResult:
    at = 0 if frame.error_offset is None else frame.error_offset - frame.offset
    begin = max(0, at - _BEFORE) if len(frame.data) > SHOWN_BYTES else 0
    data = frame.data[begin : begin + SHOWN_BYTES]
    text = f"{'…' if begin else ''}{data.hex(' ')}{'…' if begin + len(data) < len(frame.data) else ''}"
    values = {**vars(result), "frame": shown(frame), "bytes": text, "offset": frame.error_offset}
    return CheckResult(**values)
