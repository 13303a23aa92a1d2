"""A proxy of channels over QUIC. It ends QUIC at both sides, so that a :class:`~.proxy.Watcher` sees the messages.

The messages of all channels of a connection are passed on and watched in the order in which they come, as a worker
hands them to its session. Source: ``docs/protocol.md#over-quic``.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from wallaroo_spark import aqueduct
from wallaroo_spark.errors import AqueductError, WallarooError
from wallaroo_spark.event_loop import LoopThread, end_tasks
from wallaroo_spark.protocol.channels import answer_to
from wallaroo_spark.transport import format_address
from wallaroo_spark.wiretap.proxy import End, Watcher

FLUSH_SECONDS = 5.0
"""Limit in seconds of the wait until one end has what the other one sent before it closed. A choice: a worker's."""


class ChannelProxy:
    """Listens on a UDP address of its own and connects to the worker ``target``, in a thread with an event loop.

    It is a context manager. ``ca`` is the PEM file of the authority of the worker's certificate; empty: the system's.
    Entering raises :class:`TransportError` for an address that cannot be bound, and :class:`ConfigurationError` for a
    certificate that cannot be read.
    """

    def __init__(
        self,
        target: tuple[str, int],
        listen: tuple[str, int],
        *,
        certificate: str | Path,
        key: str | Path = "",
        ca: str | Path = "",
        watcher: Watcher | None = None,
    ) -> None:
        self.connections = 0
        """Number of accepted connections."""
        self._target = format_address(*target)
        self._ca = ca
        self._watcher = watcher or Watcher()
        self._opening = aqueduct.serve(
            self._serve,
            *listen,
            certificate=certificate,
            key=key,
            headers=answer_to,
        )

    def __enter__(self) -> ChannelProxy:
        self._thread = LoopThread("proxy")
        try:
            self._server = self._thread.call(self._opening.__aenter__)
        except WallarooError:
            self._thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.call(self._server.close)
        self._thread.stop()

    @property
    def address(self) -> str:
        """The address to connect to."""
        return f"quic://{self._server.address}"

    async def _serve(self, near: aqueduct.Connection) -> None:
        self.connections += 1
        connection, cause = self.connections, "the proxy has ended"
        self._watcher.opened(connection, near.peer)
        try:
            far = await aqueduct.connect(self._target, headers=await near.headers(), ca=self._ca)
            cause = await _Relay(connection, near, far, self._watcher).run()
        except WallarooError as error:
            cause = error.message
            near.abort(cause)
        finally:
            # The watcher already knows its own failure.
            with contextlib.suppress(WallarooError):
                self._watcher.closed(connection, cause)


class _Ended(Exception):
    """The connection of one end is over."""

    def __init__(self, end: End, error: AqueductError) -> None:
        super().__init__(f"the connection with the {end} has ended: {error.message}")
        self.end = end


class _Relay:
    """The channels of one connection, and those of the connection to the worker."""

    def __init__(self, number: int, near: aqueduct.Connection, far: aqueduct.Connection, watcher: Watcher) -> None:
        self._number = number
        self._near, self._far = near, far
        self._watcher = watcher
        self._pumps: dict[asyncio.Task[None], End] = {}
        """Each channel's task, and the end that sends on the channel."""

    async def run(self) -> str:
        """Pass messages on until the connection ends; return the cause of the end."""
        self._start(End.CONNECTOR, self._near.requests, self._far.entrypoint)
        cause = f"the {End.CONNECTOR} closed"
        try:
            while self._pumps:
                done, _ = await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in done:
                    del self._pumps[pump]
                    pump.result()
        except _Ended as ended:
            cause = str(ended)
            # What has arrived before is passed on.
            if rest := [pump for pump, sender in self._pumps.items() if sender is ended.end]:
                await asyncio.wait(rest, timeout=FLUSH_SECONDS)
        except BaseException:
            self._far.abort("the proxy has ended")
            raise
        finally:
            await end_tasks(*self._pumps)
        for connection in (self._far, self._near):
            with contextlib.suppress(AqueductError):
                await connection.close(cause, seconds=FLUSH_SECONDS)
        return cause

    def _start(self, sender: End, source: aqueduct.Receiver, target: aqueduct.Sender) -> None:
        self._pumps[asyncio.ensure_future(self._pump(sender, source, target))] = sender

    async def _pump(self, end: End, source: aqueduct.Receiver, target: aqueduct.Sender) -> None:
        """Pass on the messages of a channel, and its end."""
        try:
            async for message in source:
                joined = [self._join(one, end) for one in message.attachments]
                self._watcher.passed(self._number, end, message.payload)
                try:
                    attach = [theirs for theirs, *_ in joined]
                    await target.send(message.payload, attach=attach, unreliable=not message.reliable)
                except aqueduct.ConnectionLost as error:
                    raise _Ended(_other(end), error) from error
                for _, sender, receiver, onwards in joined:
                    self._start(sender, receiver, onwards)
            await target.finish()
        except aqueduct.ConnectionLost as error:
            raise _Ended(end, error) from error
        except aqueduct.ReceiverClosed:
            source.close()
        except (aqueduct.Cancelled, aqueduct.Lost):
            target.cancel()

    def _join(self, attachment: aqueduct.Attachment, end: End) -> tuple[Any, End, aqueduct.Receiver, aqueduct.Sender]:
        """Make the channel at the other end that goes on from an attached one: what to attach, and what to pump."""
        onwards = self._far if end is End.CONNECTOR else self._near
        if attachment.is_sender:
            receiver, theirs = onwards.channel("receiver")
            return theirs, _other(end), receiver, attachment.sender()
        sender, theirs = onwards.channel("sender")
        return theirs, end, attachment.receiver(), sender


def _other(end: End) -> End:
    return End.WORKER if end is End.CONNECTOR else End.CONNECTOR
