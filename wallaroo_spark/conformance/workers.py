"""Checks of a worker: connectors that say what they should, and what they should not.

Source: ``docs/conformance.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from wallaroo_spark.conformance.checks import (
    Check,
    CheckPlan,
    CheckResult,
    CheckTable,
    Mismatch,
    NotApplicableError,
    run_check,
)
from wallaroo_spark.conformance.worker_calls import MESSAGES, NAME, CheckedWorker, Visitor, WorkerCall, message_of
from wallaroo_spark.protocol import (
    NOTHING_PROCESSED,
    REVISIONS,
    Ack,
    EosMessage,
    Error,
    Flags,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Revision,
)
from wallaroo_spark.protocol.faults import is_superseded
from wallaroo_spark.protocol.frames import structs

_DRAFTS = ("draft-le", "draft-be")
_SESSION = "docs/protocol.md#session-states"
_STREAMS = "docs/protocol.md#stream-states"
_BODIES = "docs/protocol.md#frame-bodies"
_FRAMING = "docs/protocol.md#framing"
_RULINGS = "docs/protocol.md#rulings"
_REFERENCES = "docs/protocol.md#points-of-reference"
MOST_CREDITS = 1 << 20
"""Most credits that the check of credits uses. A choice: sixteen times what this package's workers grant."""
CHECKS = CheckTable[Visitor]()


@CHECKS.check("handshake", _SESSION)
def _handshake(visitor: Visitor) -> None:
    """HELLO of a new instance is answered with OK."""
    call = visitor.session()
    if call.welcome.streams:
        raise Mismatch("OK without streams, because this instance is new", f"{call.welcome.streams}")


@CHECKS.check("wrong-cookie", _RULINGS)
def _wrong_cookie(visitor: Visitor) -> None:
    """HELLO with another cookie is answered with ERROR, and no cookie is repeated in the reason."""
    call = visitor.call()
    wrong = f"{visitor.setting.cookie}-not"
    call.send(visitor.hello(cookie=wrong))
    reason = call.refused("ERROR, because the cookie is not the receiver's")
    if wrong in reason or (visitor.setting.cookie and visitor.setting.cookie in reason):
        raise Mismatch("a reason without any cookie", "one with a cookie")


@CHECKS.check("wrong-version", _SESSION)
def _wrong_version(visitor: Visitor) -> None:
    """HELLO with another version is answered with ERROR."""
    call = visitor.call()
    call.send(visitor.hello(version=f"{visitor.setting.version}-not"))
    call.refused("ERROR, because the version is not the receiver's")


@CHECKS.check("not-hello", _FRAMING)
def _not_hello(visitor: Visitor) -> None:
    """Bytes that are no HELLO have no answer."""
    call = visitor.call()
    call.wire.send(b"GET / HTTP/1.1\r\n\r\n")
    call.closed("the worker closes without an answer, because the first five bytes are no start of a HELLO")


@CHECKS.check("messages", _REFERENCES)
def _messages(visitor: Visitor) -> None:
    """A stream is opened and its messages are acknowledged, with references that increase up to the last one."""
    _sent(visitor.session())


def _sent(call: WorkerCall) -> None:
    call.open()
    if call.notified is not None and call.notified.ref != NOTHING_PROCESSED:
        raise Mismatch("NOTIFY_ACK with the reference 2^64 - 1, because nothing is committed", f"{call.notified.ref}")
    call.messages()
    call.acked(MESSAGES)


@CHECKS.check("end-of-stream", _STREAMS)
def _end_of_stream(visitor: Visitor) -> None:
    """The end of a stream is acknowledged, and NOTIFY opens it again."""
    call = visitor.session()
    _sent(call)
    # Everything is acknowledged, so the next ACK is that of the end.
    call.end_stream()
    call.open(MESSAGES)
    call.messages(MESSAGES + 1, MESSAGES + 2)
    call.acked(MESSAGES + 2)


@CHECKS.check("credits", "docs/protocol.md#credits")
def _credits(visitor: Visitor) -> None:
    """When all credits are used, more are granted. What uses them makes no rows."""
    call = visitor.session()
    call.open()
    call.messages()
    left = call.wire.credits or 0
    if left > MOST_CREDITS:
        raise NotApplicableError(f"the worker grants {left} credits at once")
    # In the drafts a BOUNDARY may repeat the id in front of it; in v3 the id says that this is a replay.
    again = (
        call.message(1) if visitor.revision.has(EosMessage) else Message(visitor.stream, MESSAGES, None, Flags.BOUNDARY)
    )
    call.send(*[again] * left)
    call.take(lambda: (call.wire.credits or 0) > 0, "an ACK with credits, because all are used")
    call.acked(MESSAGES)


@CHECKS.check("split-frames", _FRAMING)
def _split_frames(visitor: Visitor) -> None:
    """The connector's bytes come one by one."""
    _sent(visitor.session(apart=True))


@CHECKS.check("joined-frames", _FRAMING)
def _joined_frames(visitor: Visitor) -> None:
    """NOTIFY and messages come in one piece."""
    call = visitor.session()
    begin: list[Frame] = []
    if visitor.revision.has(NotifyAck):
        call.open()
    else:
        begin.append(Notify(visitor.stream, NAME))
    call.sent = 3
    call.send(*begin, *(call.message(number) for number in range(1, 4)))
    call.acked(3)


@CHECKS.check("resume", _REFERENCES)
def _resume(visitor: Visitor) -> None:
    """Behind a lost connection OK, or NOTIFY_ACK, has the committed reference, and the stream goes on behind it."""
    call = visitor.session()
    _sent(call)
    call.wire.close(reset=True)
    call = visitor.session()
    known = {one.stream_id: one.ref for one in call.welcome.streams}
    if not visitor.revision.has(NotifyAck) and known != {visitor.stream: MESSAGES}:
        raise Mismatch(f"OK with the committed reference {MESSAGES} of stream {visitor.stream}", f"{known}")
    call.sent = MESSAGES
    call.open(MESSAGES)
    if call.notified is not None:
        _knows(call.notified, MESSAGES)
    call.messages(MESSAGES + 1, MESSAGES + 3)
    call.acked(MESSAGES + 3)


def _knows(answer: NotifyAck, reference: int) -> None:
    if answer.ref != reference:
        raise Mismatch(f"NOTIFY_ACK with the committed reference {reference}", f"{answer.ref}")


@CHECKS.check("sent-again", _STREAMS)
def _sent_again(visitor: Visitor) -> None:
    """A connector that begins at the beginning is told the committed reference, and what is committed is dropped."""
    call = visitor.session()
    _sent(call)
    call.wire.close()
    call = visitor.session()
    call.sent = MESSAGES
    # From the beginning, as a connector does that knows nothing of before.
    call.open(0)
    if call.notified is None:
        call.acked(MESSAGES)
    else:
        _knows(call.notified, MESSAGES)
    call.messages(1, MESSAGES + 3)
    call.acked(MESSAGES + 3)


@CHECKS.check("superseded", "docs/protocol.md#reasons-that-a-connector-may-act-on", *_DRAFTS)
def _superseded(visitor: Visitor) -> None:
    """A newer session of an instance ends the older one."""
    older = visitor.session()
    visitor.session()
    older.refused("ERROR that ends with `, takes its place`, because the instance has a newer session", is_superseded)


@CHECKS.check("taken-stream", _STREAMS, "v3")
def _taken_stream(visitor: Visitor) -> None:
    """A stream that is active in a session is refused to every other."""
    owner = visitor.session()
    owner.open()
    if visitor.session().notify():
        raise Mismatch("NOTIFY_ACK with success 0 for a stream that another session has", "success 1")


@CHECKS.check("error", _SESSION)
def _of_connector(visitor: Visitor) -> None:
    """ERROR of a connector ends its session."""
    call = visitor.session()
    call.send(Error("the check ends this session"))
    call.closed("the worker closes the connection behind the connector's ERROR")


Wrong = Callable[[Revision, int], bytes]
"""Makes the bytes that break a rule, for a revision and the id of an open stream."""


def _of_message(number: int, of_stream: int = 0) -> Wrong:
    return lambda revision, stream: revision.encode(message_of(revision, stream ^ of_stream, number))


def _frame(make: Callable[[int], Frame]) -> Wrong:
    return lambda revision, stream: revision.encode(make(stream))


def _raw(tag: int | type[Frame], body: bytes, length: int | None = None) -> Wrong:
    def make(revision: Revision, _: int) -> bytes:
        number = tag if isinstance(tag, int) else revision.by_frame[tag].tag
        size = len(body) + 1 if length is None else length
        return structs(revision.byte_order).u32_u8.pack(size, number) + body

    return make


def _flagged(flags: int) -> Wrong:
    def make(revision: Revision, stream: int) -> bytes:
        formats = structs(revision.byte_order)
        fields = formats.u16.pack(flags) + formats.u64.pack(stream) + formats.u64.pack(MESSAGES + 1)
        return _raw(Message, fields + b"x")(revision, stream)

    return make


def _refused(name: str, does: str, page: str, wrong: Wrong, revisions: tuple[str, ...] = ()) -> Check[Visitor]:
    """A row for bytes that a worker answers with ERROR, behind which it closes."""

    def run(visitor: Visitor) -> None:
        call = visitor.session()
        call.open()
        call.messages()
        call.wire.send(wrong(visitor.revision, visitor.stream))
        call.refused("ERROR with a reason")

    return Check(name, does, page, run, revisions)


CHECKS += [
    _refused(
        "unknown-stream", "A MESSAGE of a stream that was never announced.", _STREAMS, _of_message(1, of_stream=1)
    ),
    _refused(
        "open-stream", "NOTIFY of a stream that is open.", _STREAMS, _frame(lambda one: Notify(one, NAME)), _DRAFTS
    ),
    _refused("second-hello", "A second HELLO.", _SESSION, _frame(lambda _: Hello("", b"", "", ""))),
    _refused("frame-of-a-worker", "A frame that only a worker sends.", _BODIES, _frame(lambda _: Ack(1))),
    _refused("unknown-tag", "A tag that no frame has.", _FRAMING, _raw(255, b"")),
    _refused("empty-frame", "A frame of length 0.", _FRAMING, _raw(0, b"", 0)),
    _refused(
        "long-frame", "A frame of 2 GiB, when its length has come.", "docs/protocol.md#limits", _raw(255, b"", 1 << 31)
    ),
    _refused("short-body", "A NOTIFY that ends within its fields.", _BODIES, _raw(Notify, bytes(9))),
    _refused("long-body", "A NOTIFY with a byte behind its fields.", _BODIES, _raw(Notify, bytes(19))),
    _refused("unknown-flag", "A MESSAGE with a flag that there is not.", _BODIES, _flagged(0x0400), _DRAFTS),
    _refused("payload-of-a-boundary", "A BOUNDARY with a payload.", _RULINGS, _flagged(int(Flags.BOUNDARY)), _DRAFTS),
    _refused(
        "repeated-id", "A message id that is not above the one before it.", _REFERENCES, _of_message(MESSAGES), _DRAFTS
    ),
]


def plan(
    setting: CheckedWorker, checks: Sequence[Check[Visitor]] = CHECKS, revisions: Iterable[str] = REVISIONS
) -> CheckPlan:
    """The checks to make, in each of the revisions."""
    return CheckPlan(
        [
            functools.partial(_checked, setting, check, REVISIONS[name])
            for name in revisions
            for check in checks
            if name in (check.revisions or REVISIONS)
        ],
        setting.running,
    )


def _checked(setting: CheckedWorker, check: Check[Visitor], revision: Revision) -> CheckResult:
    with Visitor(setting, revision, check.name) as visitor:
        return run_check(check, visitor, revision.name)
