"""What a worker has told a connector about its streams: committed references, and refusals. Pure: the clock is an
argument.

Source: ``docs/protocol.md#points-of-reference`` and ``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.sending.unacknowledged import UnacknowledgedMessages
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import NOTHING_PROCESSED, ConnectorSession, Nack, NotifyAck, Ok, Revision, StreamState


class StreamReferences:
    """The committed reference of each stream id; a session resumes each stream there."""

    def __init__(self) -> None:
        self._references: dict[int, int] = {}

    def get(self, stream_id: int) -> int | None:
        """The committed reference of a stream; None when the worker has none."""
        return self._references.get(stream_id)

    def began(self, revision: Revision, ok: Ok) -> None:
        """A session has begun. In v3 OK has no references; each NOTIFY_ACK brings one."""
        if not revision.has(NotifyAck):
            self._references = {stream.stream_id: stream.ref for stream in ok.streams}

    def acknowledged(self, stream_id: int, ref: int) -> None:
        """An ACK has arrived."""
        self._references[stream_id] = ref

    def settled(self, revision: Revision, stream_id: int) -> None:
        """A stream's end is acknowledged. In v3 the reference is dropped, because each NOTIFY is answered with one.

        In the drafts NOTIFY has no answer, so the reference is kept for as long as the session lasts.
        """
        if revision.has(NotifyAck):
            self._references.pop(stream_id, None)

    def rewound(self, nack: Nack) -> None:
        """A NACK has arrived. It cannot express "no reference" and carries 0 then; resending message 0 does no harm."""
        if nack.ref:
            self._references[nack.stream_id] = nack.ref
        else:
            self._references.pop(nack.stream_id, None)

    def answered(self, answer: NotifyAck) -> None:
        """A NOTIFY_ACK has arrived."""
        if answer.ref != NOTHING_PROCESSED:
            self._references[answer.stream_id] = answer.ref
        elif answer.success:
            self._references.pop(answer.stream_id, None)

    def announce(
        self,
        session: ConnectorSession,
        stream_id: int,
        messages: UnacknowledgedMessages,
        notify: Callable[[int], None],
    ) -> bool:
        """Open a stream in this session with one NOTIFY, or with one for each of several NACKs.

        ``notify`` sends one with the reference that it is called with. Returns whether the stream is open.
        """
        streams = session.streams
        if not session.is_open(stream_id) and streams.get(stream_id).state is not StreamState.NOTIFY_SENT:
            reference = messages.notify_reference(self.get(stream_id))
            notify(reference)
            while streams.get(stream_id).state is StreamState.RESET:
                notify(reference)
        return session.is_open(stream_id)


def acknowledge(session: ConnectorSession, stream_id: int, messages: UnacknowledgedMessages, ref: int) -> None:
    """Apply an ACK to the messages of a stream that was opened; the session may forget a settled stream."""
    messages.acknowledge(ref)
    if messages.settled:
        session.streams.finish(stream_id)


@dataclass
class Refusals:
    """The refused NOTIFYs of one stream: their number, and the delay before the next one.

    In v3 a worker refuses a NOTIFY while the stream is active in another session, perhaps an older one of this
    connector.
    """

    name: str
    stream_id: int
    retry: Backoff
    count: int = 0
    """Number of refusals since the last accepted NOTIFY."""
    _since: float = 0.0

    def clear(self) -> None:
        """A session has begun, or the worker has accepted a NOTIFY."""
        self.count = 0

    def refused(self, now: float) -> float:
        """The worker has refused a NOTIFY. Returns the seconds to wait before the next one.

        Raises :class:`RemoteProtocolError` when the back-off is exhausted.
        """
        if not self.count:
            self._since = now
        self.count += 1
        seconds = now - self._since
        if self.retry.exhausted(self.count, seconds):
            raise RemoteProtocolError(
                f"stream {self.name!r} (id {self.stream_id}) was refused {self.count} times in {seconds:.1f} "
                "seconds: it is active in another session; end the other connector that sends it, or use another id",
                code="stream-busy",
                stream=self.name,
                id=self.stream_id,
            )
        return min(self.retry.delay(self.count, 0.0), self.retry.give_up_after - seconds)
