"""The connector for plain scripts: the same methods without ``await``.

    with BlockingConnector("orders", instance="shop-1", workers="host:7100") as connector:
        stream = connector.open("orders-2026.jsonl")
        stream.send(b"…", id=17)
    # Leaving the block waits until everything is acknowledged.

An event loop runs in a thread of its own; every call is carried out there while the caller waits. That costs a change
of threads each time, so large amounts are better given to :meth:`BlockingStream.send_many` or
:meth:`BlockingConnector.feed`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from wallaroo_spark.connector.connector import Connector
from wallaroo_spark.connector.feed import FeedResult, Progress
from wallaroo_spark.connector.pieces import Piece, Pieces
from wallaroo_spark.connector.sources import Source
from wallaroo_spark.connector.stream import Stream
from wallaroo_spark.errors import LocalProtocolError

T = TypeVar("T")

_FINISH_SECONDS = 15.0
"""Longest that closing waits for the thread; a connection is closed in less."""


class _Call(Generic[T]):
    """A coroutine that another thread waits for; ``start`` and ``cancel`` run on the loop, in their order."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """End it, also when it was never begun."""
        if self._task is None:
            self._abandon()
        else:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._abandon()
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())

    def _abandon(self) -> None:
        self.outcome.cancel()
        self.outcome.set_running_or_notify_cancel()


class _LoopThread:
    """An event loop in a daemon thread, so that a script that is told to stop does stop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wallaroo-connector", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there and hand back its outcome. An interrupt of the caller cancels it."""
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            why = "the connector is closed" if self._loop.is_closed() else "this is called from the connector's thread"
            raise LocalProtocolError(f"{why}; a BlockingConnector serves other threads while it is open")
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.outcome.result()
        except BaseException:
            # KeyboardInterrupt, most of all, which may come at any point above: nobody waits for the outcome any more,
            # but what was begun has to end.
            if not call.outcome.done():
                self._loop.call_soon_threadsafe(call.cancel)
                concurrent.futures.wait([call.outcome], _FINISH_SECONDS)
            raise

    @property
    def stopped(self) -> bool:
        """Whether the thread has ended."""
        return self._loop.is_closed()

    def stop(self) -> None:
        """End the thread; the loop has nothing left to do."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_FINISH_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class BlockingStream:
    """A :class:`Stream` for plain scripts; made by :meth:`BlockingConnector.open`."""

    def __init__(self, stream: Stream, thread: _LoopThread) -> None:
        self._stream = stream
        self._thread = thread

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._stream)[1:]}"

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._stream.name

    @property
    def id(self) -> int:
        """The stream's id."""
        return self._stream.id

    @property
    def reference(self) -> int | None:
        """As :attr:`Stream.reference`."""
        return self._stream.reference

    @property
    def acknowledged(self) -> int | None:
        """As :attr:`Stream.acknowledged`."""
        return self._stream.acknowledged

    @property
    def unacknowledged(self) -> int:
        """As :attr:`Stream.unacknowledged`."""
        return self._stream.unacknowledged

    @property
    def last(self) -> int | None:
        """As :attr:`Stream.last`."""
        return self._stream.last

    def send(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        id: int | None = None,
        event_time: int | datetime | None = None,
        key: bytes | None = None,
        unstable: bool = False,
    ) -> int:
        """As :meth:`Stream.send`."""
        return self._thread.call(
            lambda: self._stream.send(payload, id=id, event_time=event_time, key=key, unstable=unstable)
        )

    def send_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        ids: Iterable[int] | None = None,
        event_times: Iterable[int | datetime | None] | None = None,
        keys: Iterable[bytes | None] | None = None,
        *,
        unstable: bool = False,
    ) -> int | None:
        """As :meth:`Stream.send_many`; the iterables are pulled in the caller's thread."""
        pieces = Pieces(payloads, ids, event_times, keys)
        last: int | None = None
        while (piece := pieces.next()) is not None:
            last = self._send_piece(piece, unstable=unstable)
        return last

    def send_boundary(self, id: int | None = None, *, unstable: bool = False) -> int:
        """As :meth:`Stream.send_boundary`."""
        return self._thread.call(lambda: self._stream.send_boundary(id, unstable=unstable))

    def _send_piece(self, piece: Piece, *, unstable: bool) -> int | None:
        return self._thread.call(lambda: self._stream.send_piece(piece, unstable=unstable))

    def end(self) -> None:
        """As :meth:`Stream.end`."""
        self._thread.call(self._stream.end)

    def flushed(self) -> None:
        """As :meth:`Stream.flushed`."""
        self._thread.call(self._stream.flushed)


class BlockingConnector:
    """A :class:`Connector` for plain scripts; it takes the same arguments. May be used from several threads."""

    def __init__(self, program: str, *, instance: str, **settings: Any) -> None:
        self._connector = Connector(program, instance=instance, **settings)
        self._thread = _LoopThread()

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._connector)[1:]}"

    def __enter__(self) -> Self:
        self._thread.call(self._connector.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._thread.stopped:
                self._thread.call(lambda: self._connector.__aexit__(kind, error, trace))
        finally:
            self.close()

    @property
    def waiting_for(self) -> str | None:
        """As :attr:`Connector.waiting_for`."""
        return self._thread.call(self._waiting_for)

    @property
    def unacknowledged(self) -> int:
        """As :attr:`Connector.unacknowledged`."""
        return self._thread.call(self._unacknowledged)

    def open(
        self, name: str, *, id: int | None = None, reference: int | None = None, ephemeral: bool = False
    ) -> BlockingStream:
        """As :meth:`Connector.open`."""
        stream = self._thread.call(lambda: self._connector.open(name, id=id, reference=reference, ephemeral=ephemeral))
        return BlockingStream(stream, self._thread)

    def feed(
        self,
        source: Source,
        *,
        name: str | None = None,
        id: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        end: bool = True,
        drain_timeout: float | None = None,
    ) -> FeedResult:
        """As :meth:`Connector.feed`; ``progress`` is called in the connector's thread."""
        return self._thread.call(
            lambda: self._connector.feed(
                source, name=name, id=id, progress=progress, end=end, drain_timeout=drain_timeout
            )
        )

    def drain(self, timeout: float | None = None) -> None:
        """As :meth:`Connector.drain`."""
        self._thread.call(lambda: self._connector.drain(timeout))

    def close(self) -> None:
        """As :meth:`Connector.close`; ends the thread too. May be called again."""
        try:
            with contextlib.suppress(LocalProtocolError):
                self._thread.call(self._connector.close)
        finally:
            self._thread.stop()

    async def _waiting_for(self) -> str | None:
        return self._connector.waiting_for

    async def _unacknowledged(self) -> int:
        return self._connector.unacknowledged
