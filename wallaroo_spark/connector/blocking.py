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
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from wallaroo_spark.connector.connector import Connector
from wallaroo_spark.connector.reporting import (
    Acknowledgement,
    Acknowledgements,
    CallbackThread,
    ConnectorStatus,
    OnDelivery,
)
from wallaroo_spark.connector.sending.send_batches import SendBatches
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.stream import Stream, StreamInformation, flags_of
from wallaroo_spark.errors import LocalProtocolError, TransportError
from wallaroo_spark.event_loop import Blocking, CallerThread, blocking
from wallaroo_spark.settings import takes_settings

P = ParamSpec("P")
R = TypeVar("R")


def _admitted(
    method: Callable[Concatenate[Stream, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[BlockingStream, P], R]:
    """The blocking form of a method with ``on_delivery``, which is called in a thread of its own.

    There a callback may send, open streams and close the connector. While very many callbacks wait for slower ones,
    sends with a callback wait, too.
    """

    @functools.wraps(method)
    def call(self: BlockingStream, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.get("on_delivery") is not None:
            self._callbacks.admit()
        return self._thread.call(lambda: method(self._asynchronous, *args, **kwargs))

    return call


class BlockingStream(StreamInformation, Blocking[Stream]):
    """A :class:`Stream` with blocking methods; made by :meth:`BlockingConnector.open`."""

    def __init__(self, stream: Stream, thread: CallerThread, callbacks: CallbackThread) -> None:
        StreamInformation.__init__(self, stream._sender)
        Blocking.__init__(self, stream, thread)
        self._callbacks = callbacks

    send = _admitted(Stream.send)
    send_boundary = blocking(Stream.send_boundary)
    end = blocking(Stream.end)
    flushed = blocking(Stream.flushed)

    def send_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        ids: Iterable[int] | None = None,
        event_times: Iterable[int | datetime | None] | None = None,
        keys: Iterable[bytes | None] | None = None,
        *,
        unstable: bool = False,
        on_delivery: OnDelivery | None = None,
    ) -> int | None:
        """As :meth:`Stream.send_many`; the iterables are read in the caller's thread, and callbacks are called as those
        of :meth:`send`.
        """
        sent = self._sender.expecting(on_delivery)
        batches, flags = SendBatches(payloads, ids, event_times, keys), flags_of(unstable=unstable)
        last: int | None = None
        while (batch := batches.next()) is not None:
            if on_delivery is not None:
                self._callbacks.admit()
            last = self._thread.call(functools.partial(self._sender.send_batch, batch, flags, sent))
        return last


class BlockingConnector(Blocking[Connector]):
    """A :class:`Connector` with blocking methods and the same settings. Several threads may use it."""

    @takes_settings(ConnectorSettings)
    def __init__(self, settings: ConnectorSettings) -> None:
        """The settings:"""
        connector = Connector(**vars(settings))
        super().__init__(
            connector,
            CallerThread(
                "connector",
                closed="connector-closed",
                forked="connector-forked",
                remedy="open a connector with an instance name of its own in each process, behind the fork",
            ),
        )
        self._callbacks = CallbackThread()
        connector._state.deliveries.call = self._callbacks.put

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._asynchronous)[1:]}"

    def __enter__(self) -> Self:
        self._thread.call(self._asynchronous.__aenter__)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if not self._thread.stopped and not self._thread.forked:
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
        return BlockingStream(stream, self._thread, self._callbacks)

    feed = blocking(Connector.feed)

    def drain(self, timeout: float | None = None) -> None:
        """As :meth:`Connector.drain`; it also waits until the callbacks of these messages were called."""
        until = None if timeout is None else time.monotonic() + timeout
        self._thread.call(lambda: self._asynchronous.drain(timeout))
        left = None if until is None else max(0.0, until - time.monotonic())
        if not self._callbacks.settle(left):
            raise TransportError(
                f"everything is acknowledged, and not all on_delivery callbacks were called within {timeout:g} "
                "seconds; a callback takes too long, or waits for something",
                code="callback-late",
                seconds=timeout,
            )

    def status(self) -> ConnectorStatus:
        """As :meth:`Connector.status`."""
        return self._asynchronous.status() if self._thread.stopped else self._thread.read(self._asynchronous.status)

    def acknowledgements(self) -> Iterator[Acknowledgement]:
        """As :meth:`Connector.acknowledgements`, as a plain iterator; read it in a thread of its own."""
        return _AcknowledgementSteps(self._thread.read(self._asynchronous.acknowledgements), self._thread)

    def close(self) -> None:
        """As :meth:`Connector.close`; it also ends the thread. May be called again."""
        if self._thread.forked:
            return
        try:
            with contextlib.suppress(LocalProtocolError):
                self._thread.call(self._asynchronous.close)
        finally:
            self._thread.stop()
            self._callbacks.finish()


class _AcknowledgementSteps(Blocking[Acknowledgements], Iterator[Acknowledgement]):
    """The blocking form of a subscription."""

    def __next__(self) -> Acknowledgement:
        found = None
        if not self._thread.stopped:
            try:
                found = self._thread.call(self._asynchronous.next)
            except LocalProtocolError:
                if not self._thread.stopped:
                    raise
        # The connector may have been closed meanwhile.
        found = found or self._asynchronous.take()
        if found is None:
            raise StopIteration
        return found
