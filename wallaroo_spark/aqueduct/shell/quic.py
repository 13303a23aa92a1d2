"""The one module that calls aioquic: connections over UDP sockets of asyncio, with their streams and datagrams.

Another QUIC library needs the same few calls: :func:`dial`, :func:`listen`, and the methods of :class:`QuicLink`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic import events
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.retry import QuicRetryTokenHandler
from aioquic.tls import SessionTicket

from wallaroo_spark.transport import read_authority, read_pair
from wallaroo_spark.transport.base import check_port

ALPN = "aqueduct/0"
"""The name of the protocol in the TLS handshake."""
DATAGRAM_BYTES = SMALLEST_MAX_DATAGRAM_SIZE - 46
"""The largest datagram that fits into a packet, whatever its header.

A packet of 0-RTT with ids of eight bytes has the longest one. aioquic keeps a datagram that is too large at the head of
its queue for ever, and sends none that is behind it.
"""
ANY_DATAGRAM = 65536
"""What each side announces to take, so that the size of a packet is the only limit."""
SOCKET_BYTES = 4 << 20
"""The receive buffer that is asked for: the system's own loses packets of one burst. The system may give less."""
TICKETS = 1024
"""Session tickets that a client or a server remembers; the oldest are forgotten. A choice."""
HALF_OPEN = 64
"""Connections in their handshake from which on a client must prove its address first, by another round trip.

A choice: a server answers unproven clients at once as long as few are open, and a flood of invented addresses opens no
more than these.
"""
HELD_EVENTS = 4096
"""Pieces of early data that a server holds. QUIC bounds the bytes of streams to 1 MiB, and datagrams not at all."""
KEEP_ALIVES = 3
"""Pings of a client within its idle limit, so that a quiet connection lives, and the NAT in between remembers it."""
UNDELIVERED_BYTES = 64 << 20
"""Bytes that wait behind a gap in their streams at which a connection is closed.

aioquic lets a peer send twice as far as it has sent, also when most of that has not arrived. An honest peer has at most
16 MiB on its way.
"""
CLOSE_COPIES = 3
"""Copies of the packet that tells the peer of the end. A choice: of 100 such ends, a loss of 5 % hides none."""
COPIED_BYTES = range(64, 257)
"""The sizes of packets that are sent a second time: one small message, an ack or a credit. Acks of QUIC are smaller."""
COPY_SECONDS = 0.005
"""Seconds until the copy, and the shortest time between two. A choice: later than most bursts of lost packets, and
earlier than any answer. docs/aqueduct.md#a-quiet-channel-beside-a-busy-one has what it saves."""
LONGEST_CLOSE = 500
"""The most characters of a reason for the peer; aioquic puts it into one packet."""
APPLICATION_LIMITS = 3
"""The code with which a connection is closed that goes beyond a limit."""
CRYPTO_ERRORS = range(0x100, 0x200)
"""Transport errors that are alerts of TLS."""

# aioquic warns of what peers do wrong, in their words; the error of the connection says it, too.
if logging.getLogger("quic").level == logging.NOTSET:
    logging.getLogger("quic").setLevel(logging.ERROR)


@dataclass(frozen=True)
class LinkEnd:
    """How a QUIC connection ended."""

    code: int
    reason: str
    by_program: bool
    """Whether one of the two programs has closed it, and not QUIC or TLS."""
    here: bool = False
    """Whether this program has."""

    @property
    def alert(self) -> int | None:
        """The TLS alert, if one has ended the connection."""
        return self.code - CRYPTO_ERRORS.start if not self.by_program and self.code in CRYPTO_ERRORS else None


class LinkEvents(Protocol):
    """Who is told what a connection does."""

    def ready(self, datagram_bytes: int) -> None:
        """The handshake is complete, or 0-RTT can be sent; 0 if the peer takes no datagrams."""

    def stream_received(self, stream: int, data: bytes, ended: bool) -> None:
        """Bytes of a stream in order, and whether they are its last."""

    def stream_reset(self, stream: int, code: int) -> None:
        """The peer has reset a stream."""

    def stream_stopped(self, stream: int, code: int) -> None:
        """The peer wants no more of a stream; QUIC has reset it."""

    def datagram_received(self, data: bytes) -> None:
        """A datagram."""

    def link_ended(self, end: LinkEnd) -> None:
        """The connection is at its end; nothing comes after it."""


class CopyingTransport(asyncio.DatagramTransport):
    """A socket that sends small packets twice, so that a quiet stream seldom waits for QUIC to notice a loss.

    QUIC drops the second copy by its number. At most one copy leaves within ``COPY_SECONDS``, as copies are not counted
    by the congestion control.
    """

    def __init__(self, socket: asyncio.DatagramTransport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._socket, self._loop = socket, loop
        self._waits = False

    def sendto(self, data: bytes, addr: Any = None) -> None:  # type: ignore[override]  # bytes is what aioquic sends
        """Send a packet."""
        self._socket.sendto(data, addr)
        if len(data) in COPIED_BYTES and not self._waits:
            self._waits = True
            self._loop.call_later(COPY_SECONDS, self._copy, data, addr)

    def _copy(self, data: bytes, addr: Any) -> None:
        self._waits = False
        if not self._socket.is_closing():
            self._socket.sendto(data, addr)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket says."""
        return self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.is_closing()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class QuicLink(QuicConnectionProtocol):
    """One QUIC connection. Calls take effect at once, and packets leave at the next turn of the event loop."""

    def __init__(self, quic: QuicConnection, make_events: Callable[[QuicLink], LinkEvents]) -> None:
        super().__init__(quic)
        self.heard = False
        """Whether any packet has come."""
        self.early = False
        """Whether data was sent before the handshake was complete."""
        self.complete = False
        """Whether the handshake is."""
        self.ended = False
        self._held: list[events.QuicEvent] = []
        self._arrived = 0
        self._flush: asyncio.Handle | None = None
        self._keep_alive: asyncio.TimerHandle | None = None
        self._events = make_events(self)

    # What a program does.

    def begin(self, address: Any) -> None:
        """Start the handshake of a client; with a session ticket data may be sent at once."""
        self.connect(address, transmit=False)
        ticket = self._quic.configuration.session_ticket
        if ticket is not None and ticket.is_valid and ticket.max_early_data_size and self._datagram_bytes():
            self.early = True
            self._events.ready(self._datagram_bytes())
        self._later()

    def send(self, stream: int, data: bytes, end: bool) -> None:
        """Send bytes on a stream, which the first call opens."""
        # It raises for a stream that the peer has stopped in the same packet as what is answered here.
        with contextlib.suppress(ValueError, RuntimeError):
            self._quic.send_stream_data(stream, data, end)
        self._later()

    def reset(self, stream: int, code: int) -> None:
        """Abandon the sending side of a stream."""
        self._quic.reset_stream(stream, code)
        self._later()

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram; ``data`` has at most the bytes that ``ready`` was given."""
        self._quic.send_datagram_frame(data)
        self._later()

    def end(self, code: int, reason: str) -> None:
        """Close the connection, and tell the peer."""
        if self.ended:
            return
        if self._transport is not None and self._quic.get_peer_address() is not None:
            self.transmit()
            self._quic.close(code, reason_phrase=reason[:LONGEST_CLOSE])
            # aioquic does not repeat it, and a peer that misses it waits for its idle limit.
            for data, address in self._quic.datagrams_to_send(now=self._loop.time()):
                for _ in range(CLOSE_COPIES):
                    self._transport.sendto(data, address)
            self.transmit()
        self._over(LinkEnd(code, reason, by_program=True, here=True))

    async def rebind(self) -> None:
        """Go on from a new socket, thus from another port and the address of the network that is the default now."""
        old = self._transport
        assert old is not None
        made = _socket(old.get_extra_info("socket").family)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=made)
        old.close()
        self.change_connection_id()
        self._quic.send_ping(0)
        self.transmit()

    def discard(self) -> None:
        """Close a client's socket, behind what is about to be sent."""
        if self._transport is not None:
            self._loop.call_soon(self._transport.close)

    @property
    def peer(self) -> str:
        """The peer's address."""
        address = self._quic.get_peer_address()
        return f"{address[0]}:{address[1]}" if address else "an unknown address"

    # What aioquic calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a socket, or another one."""
        super().connection_made(CopyingTransport(cast(asyncio.DatagramTransport, transport), self._loop))

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """A packet has come."""
        self.heard = True
        super().datagram_received(data, addr)
        self._bound()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        """Pass on an event; what comes before the handshake is complete waits, as it may be a replay."""
        if isinstance(event, events.HandshakeCompleted):
            self._completed()
        elif isinstance(event, events.ConnectionTerminated):
            # Only QUIC's own closes name a kind of frame.
            self._over(LinkEnd(event.error_code, event.reason_phrase, by_program=event.frame_type is None))
        elif self.complete:
            self._pass_on(event)
        elif len(self._held) < HELD_EVENTS:
            self._held.append(event)
        else:
            self.end(APPLICATION_LIMITS, f"{HELD_EVENTS} pieces of early data came; the handshake must be complete")

    def _completed(self) -> None:
        self.complete = True
        if self._quic.configuration.is_client:
            self._ping_later()
        if not self.early:
            self._events.ready(self._datagram_bytes())
        elif not self._datagram_bytes():
            self.end(1, "datagrams must be on at both ends, and the server has turned them off")
        held, self._held = self._held, []
        for event in held:
            self._pass_on(event)

    def _pass_on(self, event: events.QuicEvent) -> None:
        if self.ended:
            return
        if isinstance(event, events.StreamDataReceived):
            self._arrived += len(event.data)
            self._events.stream_received(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.DatagramFrameReceived):
            self._events.datagram_received(event.data)
        elif isinstance(event, events.StreamReset):
            self._events.stream_reset(event.stream_id, event.error_code)
        elif isinstance(event, events.StopSendingReceived):
            self._events.stream_stopped(event.stream_id, event.error_code)

    def _ping_later(self) -> None:
        pause = self._quic.configuration.idle_timeout / KEEP_ALIVES
        self._keep_alive = self._loop.call_later(pause, self._ping)

    def _ping(self) -> None:
        self._quic.send_ping(0)
        self.transmit()
        self._ping_later()

    def _over(self, end: LinkEnd) -> None:
        if not self.ended:
            self.ended = True
            if self._keep_alive is not None:
                self._keep_alive.cancel()
            self._held.clear()
            self._events.link_ended(end)

    def _datagram_bytes(self) -> int:
        # The limit counts the kind and the length of the frame, too. aioquic shows it nowhere else.
        theirs = self._quic._remote_max_datagram_frame_size or 0
        return max(0, min(DATAGRAM_BYTES, theirs - 3))

    def _bound(self) -> None:
        """Close a connection whose streams have gaps with too much behind them."""
        # A cheap sum first. It grows by what was never sent of streams that were reset, and is then set right.
        if self._quic._local_max_data.used - self._arrived <= UNDELIVERED_BYTES or self.ended:
            return
        waiting = sum(len(stream.receiver._buffer) for stream in self._quic._streams.values())
        if waiting > UNDELIVERED_BYTES:
            self.end(APPLICATION_LIMITS, f"{waiting} bytes wait behind gaps; at most {UNDELIVERED_BYTES} may")
        self._arrived = self._quic._local_max_data.used - waiting

    def _later(self) -> None:
        if self._flush is None:
            self._flush = self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        if self._transport is not None and not self._transport.is_closing():
            self.transmit()


class TicketStore:
    """Session tickets of one process, each used once. A server's are found by the ticket, a client's by the address."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[object, SessionTicket] = OrderedDict()

    def put(self, key: object, ticket: SessionTicket) -> None:
        """Remember a ticket."""
        self._tickets[key] = ticket
        self._tickets.move_to_end(key)
        while len(self._tickets) > TICKETS:
            self._tickets.popitem(last=False)

    def take(self, key: object) -> SessionTicket | None:
        """Hand out a ticket, which is forgotten."""
        return self._tickets.pop(key, None)


_client_tickets = TicketStore()


class _Server(QuicServer):
    """aioquic's server, which asks clients to prove their addresses while many handshakes are open."""

    def __init__(self, half_open: Callable[[], int], **settings: Any) -> None:
        super().__init__(**settings)
        self._half_open = half_open
        self._prover = QuicRetryTokenHandler()

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        self._retry = self._prover if self._half_open() >= HALF_OPEN else None  # type: ignore[assignment]  # as there
        super().datagram_received(data, addr)


class QuicListener:
    """A listening UDP socket."""

    def __init__(self, transport: asyncio.DatagramTransport, server: QuicServer) -> None:
        self._server = server
        self.address: tuple[str, int] = transport.get_extra_info("sockname")[:2]

    def close(self) -> None:
        """Stop to listen. Connections that are open must be ended before, as they use the same socket."""
        self._server.close()


async def dial(
    address: Any,
    family: socket.AddressFamily,
    make_events: Callable[[QuicLink], LinkEvents],
    *,
    server_name: str,
    ca: str,
    idle: float,
    early: bool,
) -> QuicLink:
    """Open a socket, and begin a connection to one address; how it goes on is told to its events."""
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        server_name=server_name,
        idle_timeout=idle,
        max_datagram_frame_size=ANY_DATAGRAM,
    )
    if ca:
        configuration.load_verify_locations(cadata=read_authority(ca))
    else:
        system = ssl.get_default_verify_paths()
        configuration.load_verify_locations(system.cafile, system.capath)
    place = (address[:2], server_name, ca)
    if early:
        configuration.session_ticket = _client_tickets.take(place)
    quic = QuicConnection(
        configuration=configuration,
        session_ticket_handler=(lambda ticket: _client_tickets.put(place, ticket)) if early else None,
    )
    loop = asyncio.get_running_loop()
    _, link = await loop.create_datagram_endpoint(lambda: QuicLink(quic, make_events), sock=_socket(family))
    link.begin(address)
    return link


async def listen(
    host: str,
    port: int,
    make_events: Callable[[QuicLink], LinkEvents],
    half_open: Callable[[], int],
    *,
    certificate: str,
    key: str,
    idle: float,
) -> QuicListener:
    """Listen at an address; an empty host is every one of this machine.

    Raises OSError for the address, and :class:`ConfigurationError` for the files.
    """
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=[ALPN], idle_timeout=idle, max_datagram_frame_size=ANY_DATAGRAM
    )
    read_pair(certificate, key)
    configuration.load_cert_chain(certificate, key or None)
    tickets = TicketStore()
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: _Server(
            half_open,
            configuration=configuration,
            create_protocol=lambda quic, stream_handler=None: QuicLink(quic, make_events),
            session_ticket_fetcher=tickets.take,
            session_ticket_handler=lambda ticket: tickets.put(ticket.ticket, ticket),
        ),
        sock=await _listening_socket(host, port),
    )
    return QuicListener(transport, server)


def _socket(family: int, address: Any = ("", 0), *, both_families: bool = False) -> socket.socket:
    made = socket.socket(family, socket.SOCK_DGRAM)
    with contextlib.ExitStack() as undo:
        undo.callback(made.close)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both_families)
        made.bind(address)
        undo.pop_all()
    return made


async def _listening_socket(host: str, port: int) -> socket.socket:
    check_port(port)
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return _socket(socket.AF_INET6, ("::", port), both_families=True)
    found = await asyncio.get_running_loop().getaddrinfo(
        host or "0.0.0.0", port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    )
    return _socket(found[0][0], found[0][4])
