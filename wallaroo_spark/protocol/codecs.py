"""Encoders and decoders of each frame in each revision; ``revisions.py`` puts them into tables.

Every ``decode_*`` takes a :class:`~.frames.Reader` positioned behind the tag and returns a frame; every ``encode_*``
takes a :class:`~.frames.Writer` and a frame. Source: ``docs/protocol.md#frame-bodies``.
"""

from __future__ import annotations

from collections.abc import Callable

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.faults import Fault, broken


def decode_hello(read: frames.Reader, check: Callable[[str | None, bytes | None], None] | None = None) -> frames.Hello:
    """HELLO. ``check(version, None)``, then ``check(None, cookie)`` run before the fields behind them are decoded."""
    version = read.short_text("the version")
    if check:
        check(version, None)
    cookie = read.short_bytes("the cookie")
    if check:
        check(None, cookie)
    hello = frames.Hello(version, cookie, read.short_text("the program name"), read.short_text("the instance name"))
    read.finish()
    return hello


def encode_hello(write: frames.Writer, frame: frames.Hello) -> None:
    """HELLO, the same in all revisions."""
    write.short_text(frame.version, "the version").short_bytes(frame.cookie, "the cookie")
    write.short_text(frame.program, "the program name").short_text(frame.instance, "the instance name")


def decode_ok_draft_le(read: frames.Reader) -> frames.Ok:
    """OK with (stream, ref) pairs up to the end of the frame."""
    credits = read.u32("the credits")
    return frames.Ok(credits, tuple(frames.StreamReference(*pair) for pair in _pairs_to_end(read)))


def encode_ok_draft_le(write: frames.Writer, frame: frames.Ok) -> None:
    """OK with (stream, ref) pairs up to the end of the frame; stream names are not sent."""
    write.u32(frame.credits, "the credits")
    for stream in frame.streams:
        write.u64(stream.stream_id, "the stream id").u64(stream.ref, "the reference")


def decode_ok_draft_be(read: frames.Reader) -> frames.Ok:
    """OK with (stream, name, ref) up to the end of the frame."""
    credits = read.u32("the credits")
    streams = []
    while read.left:
        stream_id, name = read.u64("a stream id"), read.short_text("a stream name")
        streams.append(frames.StreamReference(stream_id, read.u64("a reference"), name))
    return frames.Ok(credits, tuple(streams))


def encode_ok_draft_be(write: frames.Writer, frame: frames.Ok) -> None:
    """OK with (stream, name, ref) up to the end of the frame."""
    write.u32(frame.credits, "the credits")
    for stream in frame.streams:
        write.u64(stream.stream_id, "the stream id").short_text(stream.name, "the stream name")
        write.u64(stream.ref, "the reference")


def decode_ok_v3(read: frames.Reader) -> frames.Ok:
    """OK with credits only."""
    ok = frames.Ok(read.u32("the credits"))
    read.finish()
    return ok


def encode_ok_v3(write: frames.Writer, frame: frames.Ok) -> None:
    """OK with credits only; references are sent with NOTIFY_ACK."""
    write.u32(frame.credits, "the credits")


def decode_error(read: frames.Reader) -> frames.Error:
    """ERROR. Bytes that are not UTF-8 become replacement characters, because only people read the reason."""
    reason = read.short_bytes("the reason").decode("utf-8", errors="replace")
    read.finish()
    return frames.Error(reason)


def encode_error(write: frames.Writer, frame: frames.Error) -> None:
    """ERROR. A reason that is too long is cut between characters."""
    cut = frame.reason.encode("utf-8", errors="replace")[:0xFFFF]
    write.short_text(cut.decode("utf-8", errors="ignore"), "the reason")


def decode_notify(read: frames.Reader) -> frames.Notify:
    """NOTIFY, the same in all revisions."""
    notify = frames.Notify(read.u64("the stream id"), read.short_text("the stream name"), read.u64("the reference"))
    read.finish()
    return notify


def encode_notify(write: frames.Writer, frame: frames.Notify) -> None:
    """NOTIFY, the same in all revisions."""
    write.u64(frame.stream_id, "the stream id").short_text(frame.name, "the stream name")
    write.u64(frame.ref, "the reference")


def decode_notify_ack(read: frames.Reader) -> frames.NotifyAck:
    """v3 NOTIFY_ACK. ``success`` must be 0 or 1."""
    success = read.u8("the success byte")
    if success > 1:
        raise broken(Fault.WRONG_STATE, f"NOTIFY_ACK success is {success}; it is 0 or 1")
    ack = frames.NotifyAck(bool(success), read.u64("the stream id"), read.u64("the reference"))
    read.finish()
    return ack


def encode_notify_ack(write: frames.Writer, frame: frames.NotifyAck) -> None:
    """v3 NOTIFY_ACK."""
    write.u8(int(frame.success)).u64(frame.stream_id, "the stream id").u64(frame.ref, "the reference")


def decode_message_draft_le(read: frames.Reader) -> frames.Message:
    """draft-le MESSAGE: flags, stream, id (always), event time (by flag); no key."""
    flags = checked_flags(read.u16("the flags"), frames.Flags(31))
    stream_id, message_id = read.u64("the stream id"), read.u64("the message id")
    event_time = read.u64("the event time") if flags & frames.Flags.EVENT_TIME else None
    return frames.Message(stream_id, message_id, _payload(read, flags), flags, event_time)


def encode_message_draft_le(write: frames.Writer, frame: frames.Message) -> None:
    """draft-le MESSAGE. An ephemeral message carries its id, or 0 without one."""
    if frame.key is not None:
        raise LocalProtocolError(
            "draft-le messages have no key; leave it out, or use draft-be or v3", code="not-in-revision"
        )
    write.u16(_flags_of(frame), "the flags").u64(frame.stream_id, "the stream id")
    write.u64(_message_id(frame), "the message id")
    _encode_tail(write, frame)


def decode_message_draft_be(read: frames.Reader) -> frames.Message:
    """draft-be MESSAGE: flags, stream, then id, event time and key, each by flag."""
    flags = checked_flags(read.u16("the flags"), frames.Flags(63))
    stream_id = read.u64("the stream id")
    message_id = None if flags & frames.Flags.EPHEMERAL else read.u64("the message id")
    event_time = read.u64("the event time") if flags & frames.Flags.EVENT_TIME else None
    key = read.short_bytes("the key") if flags & frames.Flags.KEY else None
    return frames.Message(stream_id, message_id, _payload(read, flags), flags, event_time, key)


def encode_message_draft_be(write: frames.Writer, frame: frames.Message) -> None:
    """draft-be MESSAGE. An ephemeral message carries no id."""
    write.u16(_flags_of(frame), "the flags").u64(frame.stream_id, "the stream id")
    if not frame.flags & frames.Flags.EPHEMERAL:
        write.u64(_message_id(frame), "the message id")
    _encode_tail(write, frame)


def decode_message_v3(read: frames.Reader) -> frames.Message:
    """v3 MESSAGE: every field is always present; an event time of 0 and an empty key are returned as such."""
    stream_id, message_id = read.u64("the stream id"), read.u64("the message id")
    event_time, key = read.i64("the event time"), read.short_bytes("the key")
    return frames.Message(stream_id, message_id, read.rest(), frames.Flags.NONE, event_time, key)


def encode_message_v3(write: frames.Writer, frame: frames.Message) -> None:
    """v3 MESSAGE. A missing event time is sent as 0, a missing key as empty. Flags are not sent."""
    if frame.flags & ~(frames.Flags.EVENT_TIME | frames.Flags.KEY):
        raise LocalProtocolError(
            f"v3 messages have no flags, so {frame.flags!r} cannot be sent; use a draft revision",
            code="not-in-revision",
        )
    write.u64(frame.stream_id, "the stream id").u64(_message_id(frame), "the message id")
    write.i64(frame.event_time or 0, "the event time").short_bytes(frame.key or b"", "the key")
    write.raw(frame.payload or b"")


def decode_eos(read: frames.Reader) -> frames.EosMessage:
    """v3 EOS_MESSAGE, with or without a message id, because peers send both forms."""
    eos = frames.EosMessage(read.u64("the stream id"), read.u64("the message id") if read.left else None)
    read.finish()
    return eos


def encode_eos(write: frames.Writer, frame: frames.EosMessage) -> None:
    """v3 EOS_MESSAGE."""
    write.u64(frame.stream_id, "the stream id")
    if frame.message_id is not None:
        write.u64(frame.message_id, "the message id")


def decode_ack_draft_le(read: frames.Reader) -> frames.Ack:
    """ACK with (stream, ref) pairs up to the end of the frame."""
    return frames.Ack(read.u32("the credits"), tuple(_pairs_to_end(read)))


def encode_ack_draft_le(write: frames.Writer, frame: frames.Ack) -> None:
    """ACK with (stream, ref) pairs up to the end of the frame."""
    write.u32(frame.credits, "the credits")
    _encode_pairs(write, frame.refs)


def decode_ack(read: frames.Reader) -> frames.Ack:
    """ACK with a count of (stream, ref) pairs (draft-be and v3)."""
    credits, count = read.u32("the credits"), read.u32("the number of references")
    if count * 16 != read.left:
        raise broken(Fault.TRUNCATED_FRAME, f"ACK announces {count} references and has room for {read.left / 16:g}")
    return frames.Ack(credits, tuple(_pairs_to_end(read)))


def encode_ack(write: frames.Writer, frame: frames.Ack) -> None:
    """ACK with a count of (stream, ref) pairs (draft-be and v3)."""
    write.u32(frame.credits, "the credits").u32(len(frame.refs), "the number of references")
    _encode_pairs(write, frame.refs)


def decode_nack(read: frames.Reader) -> frames.Nack:
    """draft-le NACK."""
    nack = frames.Nack(read.u32("the credits"), read.u64("the stream id"), read.u64("the reference"))
    read.finish()
    return nack


def encode_nack(write: frames.Writer, frame: frames.Nack) -> None:
    """draft-le NACK."""
    write.u32(frame.credits, "the credits").u64(frame.stream_id, "the stream id").u64(frame.ref, "the reference")


def decode_restart_draft_be(read: frames.Reader) -> frames.Restart:
    """draft-be RESTART: empty."""
    read.finish()
    return frames.Restart()


def encode_restart_draft_be(write: frames.Writer, frame: frames.Restart) -> None:
    """draft-be RESTART: empty; it cannot carry an address."""


def decode_restart_v3(read: frames.Reader) -> frames.Restart:
    """v3 RESTART: empty, or a u32 length and ``host:port``."""
    if not read.left:
        return frames.Restart()
    raw = read.take(read.u32("the length of the address"), "the address")
    read.finish()
    try:
        return frames.Restart(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise broken(Fault.INVALID_TEXT, "the address in a RESTART frame is not UTF-8") from None


def encode_restart_v3(write: frames.Writer, frame: frames.Restart) -> None:
    """v3 RESTART; without an address the length is 0."""
    address = frame.address.encode("utf-8")
    write.u32(len(address), "the length of the address").raw(address)


def checked_flags(bits: int, known: frames.Flags) -> frames.Flags:
    """Return the flags. Raises :class:`RemoteProtocolError` when a reserved flag is set."""
    if bits & ~int(known):
        raise broken(Fault.RESERVED_FLAG, f"MESSAGE flags are {bits:#06x}; only {int(known):#06x} may be set")
    return frames.Flags(bits)


def _payload(read: frames.Reader, flags: frames.Flags) -> bytes | None:
    if not flags & frames.Flags.BOUNDARY:
        return read.rest()
    if read.left:
        reason = (
            f"a BOUNDARY message has {read.left} bytes behind its fields, where no payload may be; send a payload in a "
            "message without BOUNDARY, and check that its fields are flags, stream id, message id (in draft-be not "
            "with EPHEMERAL) and, each where its flag is set, event time and key"
        )
        raise broken(Fault.BOUNDARY_PAYLOAD, reason)
    return None


def _flags_of(frame: frames.Message) -> int:
    flags = frame.flags & ~(frames.Flags.EVENT_TIME | frames.Flags.KEY)
    if frame.event_time is not None:
        flags |= frames.Flags.EVENT_TIME
    if frame.key is not None:
        flags |= frames.Flags.KEY
    if flags & frames.Flags.BOUNDARY and frame.payload:
        raise LocalProtocolError(
            f"a BOUNDARY message has no payload, and this one has {len(frame.payload)} bytes", code="boundary-payload"
        )
    return int(flags)


def _message_id(frame: frames.Message) -> int:
    if frame.message_id is None:
        if frame.flags & frames.Flags.EPHEMERAL:
            return 0
        raise LocalProtocolError(
            f"a message of stream {frame.stream_id} has no id; only an EPHEMERAL message may have none",
            code="not-in-revision",
        )
    return frame.message_id


def _encode_tail(write: frames.Writer, frame: frames.Message) -> None:
    if frame.event_time is not None:
        write.u64(frame.event_time, "the event time")
    if frame.key is not None:
        write.short_bytes(frame.key, "the key")
    write.raw(frame.payload or b"")


def _pairs_to_end(read: frames.Reader) -> list[tuple[int, int]]:
    pairs = []
    while read.left:
        pairs.append((read.u64("a stream id"), read.u64("a reference")))
    return pairs


def _encode_pairs(write: frames.Writer, pairs: tuple[tuple[int, int], ...]) -> None:
    for stream_id, ref in pairs:
        write.u64(stream_id, "the stream id").u64(ref, "the reference")
