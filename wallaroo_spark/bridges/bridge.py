"""What a bridge is: its settings and what it promises, and the references of those that read a log.

A log, such as a partition of Kafka, has positions of its own. They begin at the front again when the log is deleted and
made anew under its name. So a reference has a position and a mark of the log that it belongs to.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from wallaroo_spark.bridges.streams import BridgedStream
from wallaroo_spark.connector import Backoff
from wallaroo_spark.errors import ConfigurationError, ReplayError, one_line
from wallaroo_spark.protocol import MAX_INSTANCE_BYTES
from wallaroo_spark.settings import Kind, check_all, setting


@dataclass(frozen=True)
class Promise:
    """What a bridge promises, as the page says it."""

    reference: str
    """A stream's point of reference."""
    told: str
    """What the source is told behind a commit."""
    killed: str
    """What happens to messages when the bridge is killed at any moment and started again."""


@dataclass(eq=False)
class Bridge(ABC):
    """A source that another program keeps. Its fields are a table of settings (:mod:`wallaroo_spark.settings`)."""

    promise: ClassVar[Promise]
    """What it promises."""
    extra: ClassVar[str] = ""
    """The extra that installs its client; empty: none is needed."""

    def __post_init__(self) -> None:
        check_all(self)
        self.retry = Backoff()
        """The delays before the source is asked again for its streams, and when to give up."""

    @property
    @abstractmethod
    def place(self) -> str:
        """A short name of what is read, without secrets; it is the same from run to run."""

    @abstractmethod
    def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The streams, as they appear; it ends when none can appear any more. Its end closes the client."""

    def instance(self, kind: str) -> str:
        """The name of the connector, unless the user gives one: it does not depend on the host."""
        name = f"bridge/{kind}/{self.place}"
        if len(name.encode()) <= MAX_INSTANCE_BYTES:
            return name
        return f"bridge/{kind}/{hashlib.blake2b(self.place.encode(), digest_size=16).hexdigest()}"


def unreadable(what: str, expected: str) -> ConfigurationError:
    """The error for a URL. Neither it nor the parser's error is shown, because both may contain a password."""
    return ConfigurationError(
        f"the URL of {what} cannot be read; expected {expected}, with special characters of the password "
        "percent-encoded",
        code="url-invalid",
    )


_log = one_line("wallaroo_spark.bridges")

MARK_BITS = 16
"""Bits of a reference for the mark."""
MOST_POSITIONS = 1 << (63 - MARK_BITS)
"""Positions have 47 bits, so that the column ``message_id``, which has a sign, increases too."""
_MASK = (1 << MARK_BITS) - 1


@dataclass(eq=False, kw_only=True)
class LogBridge(Bridge):
    """The settings of all bridges that read logs."""

    begin: str = setting("earliest", Kind.TEXT, choices=("earliest", "latest"))
    """Where to begin if the receiver has nothing of it."""
    lost: str = setting("refuse", Kind.TEXT, choices=("refuse", "skip"))
    """What to do when the source has deleted messages that were not sent yet: end with an error, or log it and go on
    behind them."""


@dataclass(frozen=True)
class SourceLog:
    """One log of a source. Its messages have positions that increase; some may have none."""

    title: str
    """What errors call it."""
    identity: bytes
    """Another one when the log is made anew; empty where it is not known."""
    first: int
    """The position of the first message that the source still has."""
    end: int
    """The position that the next new message gets, at the least."""

    def reference(self, position: int) -> int:
        """The reference of a position."""
        return reference_of(position, self.identity)

    def start(self, after: int | None, *, begin: str, lost: str) -> int:
        """The position to read at, by the settings.

        Raises :class:`ReplayError` when what is behind a reference is gone.
        """
        if after is None:
            return self.first if begin == "earliest" else self.end
        committed = position_of(after)
        if self.identity and (mark := after & _MASK) and mark != self.reference(0):
            raise self.made_again(after)
        if committed >= self.end:
            raise self._missing(
                f"ends before position {self.end}, and position {committed} is committed: it has lost messages, or was "
                "deleted and made again; use another --instance to begin anew",
                after,
            )
        if committed + 1 < self.first:
            gap = f"begins at position {self.first}, and is committed up to {committed}: those between are deleted"
            if lost == "refuse":
                raise self._missing(f"{gap}; let the source keep messages longer, and go on with --lost skip", after)
            _log.warning("%s %s", self.title, gap)
        return max(committed + 1, self.first)

    def made_again(self, after: int | None) -> ReplayError:
        """The error for another log than the one that a reference belongs to."""
        return self._missing(
            "was deleted and made again, and what was not sent of the former is lost; use another --instance to begin "
            "anew",
            after,
        )

    def _missing(self, problem: str, after: int | None) -> ReplayError:
        return ReplayError(f"{self.title} {problem}", code="source-changed", reference=after)


class LogStream(BridgedStream):
    """A stream of a log."""

    def start(self, log: SourceLog, after: int | None, *, begin: str, lost: str) -> int:
        """The position to read at, as :meth:`SourceLog.start`."""
        first = log.start(after, begin=begin, lost=lost)
        if after is None:
            self.began = log.reference(first) - (1 << MARK_BITS)
        return first


def position_of(reference: int) -> int:
    """The position of a reference."""
    return reference >> MARK_BITS


def reference_of(position: int, identity: bytes) -> int:
    """The reference of a position, with the mark of its log; 0 is that of a log whose identity is not known."""
    if position >= MOST_POSITIONS:
        raise ConfigurationError(
            f"a reference has room for positions below {MOST_POSITIONS}, and this is {position}",
            code="id-out-of-range",
        )
    mark = int.from_bytes(hashlib.blake2b(identity, digest_size=MARK_BITS // 8).digest(), "big") or 1
    return position << MARK_BITS | (mark if identity else 0)
