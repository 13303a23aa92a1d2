"""The connector for plain scripts: the same methods without ``await``.

    with BlockingConnector("orders", instance="shop-1", workers="host:7100") as connector:
        stream = connector.open("orders-2026.jsonl")
        stream.send(b"…", id=17)
    # The end of the block waits until everything is acknowledged.

An event loop runs in a thread of its own; every call runs there while the caller waits. That costs two
thread switches for each call, so use :meth:`BlockingStream.send_many` or :meth:`BlockingConnector.feed` for many
messages.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from wallaroo_spark.connector.connector import Connector
from wallaroo_spark.connector.sending.send_batches import SendBatches
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.stream import Stream, StreamInformation, flags_of
from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.loop_thread import LoopThread
from wallaroo_spark.settings import takes_settings

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _ConnectorThread(LoopThread):
    """The thread of one connector. It refuses calls after its end, and calls from itself."""

    def __init__(self) -> None:
        super().__init__("wallaroo-connector")

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As :meth:`LoopThread.call`. Raises :class:`LocalProtocolError` when the connector is closed, or the caller is
        this thread."""
        if self.stopped or self.inside:
            why = "the connector is closed" if self.stopped else "this is called from the connector's thread"
            raise LocalProtocolError(f"{why}; a BlockingConnector serves other threads while it is open")
        return super().call(work)


class _Blocking(Generic[T]):
    """The blocking form of an object with asynchronous methods, and the thread in which these run."""

    def __init__(self, asynchronous: T, thread: LoopThread) -> None:
        self._asynchronous = asynchronous
        self._thread = thread


def _blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Blocking[T], P], R]:
    """The blocking form of an asynchronous method, with its parameters and its docstring."""

    @functools.wraps(method)
    def call(self: _Blocking[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(lambda: method(self._asynchronous, *args, **kwargs))

    return call


class BlockingStream(StreamInformation, _Blocking[Stream]):
    """A :class:`Stream` with blocking methods; made by :meth:`BlockingConnector.open`."""

    def __init__(self, stream: Stream, thread: LoopThread) -> None:
        StreamInformation.__init__(self, stream._sender)
        _Blocking.__init__(self, stream, thread)

    send = _blocking(Stream.send)
    send_boundary = _blocking(Stream.send_boundary)
    end = _blocking(Stream.end)
    flushed = _blocking(Stream.flushed)

    def send_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        ids: Iterable[int] | None = None,
        event_times: Iterable[int | datetime | None] | None = None,
        keys: Iterable[bytes | None] | None = None,
        *,
        unstable: bool = False,
    ) -> int | None:
        """As :meth:`Stream.send_many`; the iterables are read in the caller's thread."""
        batches = SendBatches(payloads, ids, event_times, keys)
        last: int | None = None
        while (batch := batches.next()) is not None:
            last = self._thread.call(functools.partial(self._sender.send_batch, batch, flags_of(unstable=unstable)))
        return last


class BlockingConnector(_Blocking[Connector]):
    """A :class:`Connector` with blocking methods and the same settings. Several threads may use it."""

    @takes_settings(ConnectorSettings)
    def __init__(self, settings: ConnectorSettings) -> None:
        """The settings:"""
        super().__init__(Connector(**vars(settings)), _ConnectorThread())

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._asynchronous)[1:]}"

    def __enter__(self) -> Self:
        self._thread.call(self._asynchronous.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._thread.stopped:
                self._thread.call(lambda: self._asynchronous.__aexit__(kind, error, trace))
        finally:
            self.close()

    @property
    def waiting_for(self) -> str | None:
        """As :attr:`Connector.waiting_for`."""
        return self._thread.read(lambda: self._asynchronous.waiting_for)

    @property
    def unacknowledged(self) -> int:
        """As :attr:`Connector.unacknowledged`."""
        return self._thread.read(lambda: self._asynchronous.unacknowledged)

    def open(
        self, name: str, *, id: int | None = None, reference: int | None = None, ephemeral: bool = False
    ) -> BlockingStream:
        """As :meth:`Connector.open`."""
        stream = self._thread.call(
            lambda: self._asynchronous.open(name, id=id, reference=reference, ephemeral=ephemeral)
        )
        return BlockingStream(stream, self._thread)

    feed = _blocking(Connector.feed)
    drain = _blocking(Connector.drain)

    def close(self) -> None:
        """As :meth:`Connector.close`; it also ends the thread. May be called again."""
        try:
            with contextlib.suppress(LocalProtocolError):
                self._thread.call(self._asynchronous.close)
        finally:
            self._thread.stop()
