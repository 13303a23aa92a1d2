"""The refused NOTIFYs of one stream: their number, and the delay before the next one. Pure: the clock is an argument.

In v3 a worker refuses a NOTIFY while the stream is active in another session, perhaps an older one of this connector.
Source: ``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.errors import RemoteProtocolError


class Refusals:
    """Counts consecutive refusals of one stream."""

    def __init__(self, name: str, stream_id: int, retry: Backoff) -> None:
        self.count = 0
        """Number of refusals since the last accepted NOTIFY."""
        self._name = name
        self._stream_id = stream_id
        self._retry = retry
        self._since = 0.0

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
        if self._retry.exhausted(self.count, seconds):
            raise RemoteProtocolError(
                f"stream {self._name!r} (id {self._stream_id}) was refused {self.count} times in {seconds:.1f} "
                "seconds: it is active in another session; end the other connector that sends it, or use another id",
                code="stream-busy",
                stream=self._name,
                id=self._stream_id,
            )
        return min(self._retry.delay(self.count, 0.0), self._retry.give_up_after - seconds)
