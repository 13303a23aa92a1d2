"""The live state of a connector as a value, with one sentence on what it waits for and a stable code. Pure.

The codes are those of the one table of codes. Source: ``docs/producers.md#what-a-connector-waits-for``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wallaroo_spark.codes import ENTRIES

LONG_SECONDS = 60.0
"""A wait that lasts longer is not healthy. A choice, the same as for a batch: many batches take some seconds."""

CONNECTOR_CODES = {
    code: ENTRIES[code].title
    for code in (
        "connector-not-started",
        "connector-closed",
        "connector-failed",
        "no-session",
        "session-pending",
        "stream-pending",
        "resending",
        "no-credits",
        "network-full",
        "unacknowledged-full",
        "commit-awaited",
        "idle",
    )
}
"""Every code of a connector with its meaning. Codes are stable: programs may compare them."""

_NO_WAIT = frozenset(["connector-not-started", "connector-closed", "connector-failed", "idle"])
"""Codes of a connector that waits for nothing."""

_SENDS = {
    "answer to NOTIFY": ("stream-pending", "the worker has not opened the stream", ""),
    "messages that are sent again first": ("resending", "messages of the session before are sent again first", ""),
    "credit": (
        "no-credits",
        "credits {credits}",
        "the worker grants new ones when it has room: check that the receiver's query runs and commits",
    ),
    "network": ("network-full", "the network takes no more bytes", "check the network to {worker}"),
    "memory": (
        "unacknowledged-full",
        "{messages} messages ({bytes} bytes) are unacknowledged, which is the limit",
        "check that the receiver's query commits, or raise max_unacknowledged",
    ),
}
"""By reason of a waiting send: code, sentence and cure."""


@dataclass(frozen=True)
class ConnectorCause:
    """The one sentence on what a connector waits for."""

    code: str
    """A stable code, one of :data:`CONNECTOR_CODES`."""
    sentence: str
    """The sentence for a person, with program and instance in front."""
    healthy: bool
    """Whether everything works as it should; waiting for a commit for some seconds, for example, is healthy."""
    cure: str
    """What to do about it; empty when nothing has to be done."""


@dataclass(frozen=True)
class ConnectorStatus:
    """A snapshot of a connector."""

    program: str
    """The receiver's name, as given."""
    instance: str
    """The connector's name."""
    state: str
    """``new``, ``connecting``, ``connected``, ``failed`` or ``closed``."""
    worker: str | None
    """``host:port`` of the worker of the session; None without a session."""
    credits: int | None
    """Messages that may still be sent before the worker grants more; None without a session."""
    streams: int
    """Number of open streams."""
    unacknowledged_messages: int
    """Messages of all streams that were sent and are not acknowledged."""
    unacknowledged_bytes: int
    """Bytes that are kept for these messages."""
    oldest_unacknowledged: float | None
    """Seconds since the oldest unacknowledged message was sent, to a quarter of a second; None when there is none."""
    last_error: str
    """The error that has ended the connector, or else the reason why the last session or attempt has ended; empty when
    there was none."""
    waiting: float | None
    """Seconds for which the oldest waiting call waits; None while no call waits."""
    waiting_for: str | None
    """The reason of the oldest waiting send, as in :attr:`Connector.waiting_for`; None while no send waits."""
    down: float | None
    """Seconds without a session; None with one."""
    handshake_with: str | None
    """``host:port`` of the worker that has not answered HELLO yet; None for none."""
    cause: ConnectorCause = field(init=False)
    """What it waits for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", _cause(self))


def _cause(status: ConnectorStatus) -> ConnectorCause:
    code, text, cure, seconds = _finding(status)
    verb = " " if code in _NO_WAIT else " waits: "
    sentence = f"{status.program}/{status.instance}{verb}{text}"
    return ConnectorCause(code, sentence, code != "connector-failed" and (seconds or 0.0) < LONG_SECONDS, cure)


def _finding(status: ConnectorStatus) -> tuple[str, str, str, float | None]:
    """Code, sentence behind the subject, cure, and seconds of the wait."""
    if status.state == "failed":
        return (
            "connector-failed",
            f"has failed: {status.last_error}",
            "open another connector once the cause is mended",
            None,
        )
    if status.state == "closed":
        return "connector-closed", "is closed", "", None
    if status.state == "new":
        return "connector-not-started", "is not connected yet; it connects with the first stream", "", None
    if status.state == "connecting":
        return _connecting(status)
    if status.waiting_for in _SENDS:
        code, text, cure = _SENDS[status.waiting_for]
        values = {
            "credits": status.credits,
            "messages": status.unacknowledged_messages,
            "bytes": status.unacknowledged_bytes,
            "worker": status.worker,
        }
        return code, text.format(**values) + _for(status.waiting), cure.format(**values), status.waiting
    if status.unacknowledged_messages:
        number = status.unacknowledged_messages
        messages = "1 message is" if number == 1 else f"{number} messages are"
        text = f"{messages} sent to {status.worker} and not committed by Spark yet"
        cure = "check that the receiver's query runs; its status names the cause"
        oldest = status.oldest_unacknowledged
        return "commit-awaited", text + _for(oldest, ", the oldest for"), cure, oldest
    return "idle", "has nothing to wait for: everything that was sent is acknowledged", "", None


def _connecting(status: ConnectorStatus) -> tuple[str, str, str, float | None]:
    if status.handshake_with is not None:
        text = f"the worker at {status.handshake_with} has not answered HELLO{_for(status.down)}"
        return "session-pending", text, "a worker answers once its query has started; check the query", status.down
    reason = f"; the last reason: {status.last_error}" if status.last_error else ""
    text = f"there is no session with a worker{_for(status.down)}{reason}"
    return "no-session", text, "check that the receiver runs, and its workers' addresses", status.down


def _for(seconds: float | None, before: str = ", for") -> str:
    return "" if seconds is None else f"{before} {seconds:.1f} s"
