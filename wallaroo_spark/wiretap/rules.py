"""Checks the frames of a recorded session against the tables of the protocol: order, streams and credits.

It uses the tables that sessions use. A violation is named and the session goes on, because the capture does.
Source: ``docs/protocol.md#session-states``, ``docs/protocol.md#stream-states`` and ``docs/protocol.md#credits``.
"""

from __future__ import annotations

from wallaroo_spark import protocol
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.wiretap.proxy import End

_MOST_STREAMS = 1 << 20
"""Most streams of a session whose states are followed. A choice that bounds memory; a worker allows far fewer."""
_ROLES = {End.CONNECTOR: protocol.Role.CONNECTOR, End.WORKER: protocol.Role.WORKER}
_ENDED = (protocol.SessionState.ERROR, protocol.SessionState.RESTARTING, protocol.SessionState.DISCONNECTED)


class SessionRules:
    """Follows one session. ``credits`` is the connector's balance; None before OK, and where a file begins later."""

    def __init__(self, revision: protocol.Revision, *, whole: bool = True) -> None:
        self.credits: int | None = None
        self._state = protocol.SessionState.CONNECTED
        self._streams = protocol.SessionStreams(revision, _MOST_STREAMS)
        self._whole = whole

    def follow(self, sender: End, frame: protocol.Frame) -> str:
        """Apply a frame; return the violation of a rule, empty without one."""
        if not self._whole or self._state in _ENDED:
            # Behind an ERROR or a RESTART frames that were on their way are ignored.
            return ""
        next_state = protocol.SESSION[_ROLES[sender]].get(self._state, {}).get(type(frame))
        if next_state is None:
            return f"{protocol.frame_name(type(frame))} of a {sender} is not allowed in state {self._state}"
        self._state = next_state
        try:
            return self._credits(frame) or self._stream(frame)
        except RemoteProtocolError as error:
            return error.message

    def _credits(self, frame: protocol.Frame) -> str:
        match frame:
            case protocol.Ok(credits=granted):
                self.credits = granted
            case protocol.Ack(credits=granted) | protocol.Nack(credits=granted) if self.credits is not None:
                self.credits += granted
            case protocol.Notify() if self.credits is not None:
                self.credits -= 1
            case protocol.Message() if self.credits is not None:
                self.credits -= 1
                if self.credits < 0:
                    return f"sent with no credit left (the balance is {self.credits}); wait for an ACK"
        return ""

    def _stream(self, frame: protocol.Frame) -> str:
        streams = self._streams
        match frame:
            case protocol.Notify(stream_id=stream_id, name=name):
                streams.notify(stream_id, name)
            case protocol.Message(stream_id=stream_id, flags=flags):
                streams.apply(stream_id, protocol.StreamEvent.MESSAGE)
                if flags & protocol.Flags.EOS:
                    streams.apply(stream_id, protocol.StreamEvent.EOS)
            case protocol.EosMessage(stream_id=stream_id):
                streams.apply(stream_id, protocol.StreamEvent.EOS)
            case protocol.Nack(stream_id=stream_id):
                streams.apply(stream_id, protocol.StreamEvent.NACK)
            case protocol.NotifyAck(success=success, stream_id=stream_id):
                streams.apply(stream_id, protocol.StreamEvent.ACCEPTED if success else protocol.StreamEvent.REFUSED)
            case protocol.Restart():
                streams.restart()
            case protocol.Hello() | protocol.Ok() | protocol.Error() | protocol.Ack():
                pass
        return ""
