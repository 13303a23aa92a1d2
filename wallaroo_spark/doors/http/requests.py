"""From a request to its answer: what is asked of the ground, and when the answer is due.

Source: ``docs/doors/http.md#requests-and-answers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import OrderedDict
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from wallaroo_spark.doors.client import DoorClient, DoorStream
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.http import tokens
from wallaroo_spark.doors.http.access import HttpAccess
from wallaroo_spark.doors.http.bodies import Taken, media_type, take
from wallaroo_spark.doors.http.connection import Answer, HttpConnection
from wallaroo_spark.doors.http.encodings import check_encoding, decompressed
from wallaroo_spark.doors.http.parser import RequestHead
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.http.repeats import Repeats, without
from wallaroo_spark.doors.otlp.bodies import GZIP, LISTS
from wallaroo_spark.doors.otlp.intake import Intake, due
from wallaroo_spark.doors.otlp.status import as_json, of_otlp, packed
from wallaroo_spark.doors.tickets import Ticket, answered_when_received
from wallaroo_spark.doors.waits import kept
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import MAX_INSTANCE_BYTES, MAX_NAME_BYTES
from wallaroo_spark.transport import format_address, parse_address

DOOR = "http"
OPEN_SECONDS = 15.0
"""How long a request waits for the session of its instance. A choice: longer than the driver has for its references."""
LONGEST_POLL = 60.0
"""Limit of ``?wait=`` in seconds. A choice: proxies give up at about that time."""
REMEMBERED = 10_000
"""Requests answered with 202 that can be asked for. A choice."""
SKIPPED_BYTES = 64 << 10
"""Longest body of a request that needs none, in bytes."""
GREATEST_TOKEN = (1 << 63) - 1
"""Limit of a token: the column message_id is a bigint."""
JSON, TEXT, PROTOBUF = "application/json", "text/plain; charset=utf-8", "application/x-protobuf"
_PREFER_WAIT = re.compile(r"\bwait\s*=\s*\"?(\d{1,4})")
_OWN = re.compile(r"worker-\d+")


class Requests:
    """The requests of one worker's HTTP door."""

    def __init__(self, ground: Ground, options: Options) -> None:
        self.leaving = ""
        """Why no new request is taken; empty before."""
        self._waits = 0
        self._ground = ground
        self._options = options
        self._repeats = Repeats()
        self._otlp = Intake(ground, options)
        self._asked_for: OrderedDict[tuple[str, str, int], tuple[Ticket, int]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Requests that wait for a commit, or for a session."""
        return self._waits + self._otlp.waiting

    async def answer(self, connection: HttpConnection, head: RequestHead, access: HttpAccess) -> Answer:
        """The answer to a request, when it is due. Raises :class:`Problem`."""
        if head.method == "OPTIONS":
            await _skip(connection)
            return Answer(HTTPStatus.NO_CONTENT, b"", "", **access.preflight())
        try:
            segments = head.segments()
        except UnicodeDecodeError:
            raise Problem("http-malformed", "the path is not UTF-8") from None
        match head.method, segments:
            case "GET" | "HEAD", [""]:
                await _skip(connection)
                return Answer(HTTPStatus.OK, b"" if head.method == "HEAD" else self._page(head), TEXT)
            case "POST", ["v1", "streams", name]:
                sender = access.check_secret(head)
                return await self._post(connection, head, _stream_name(name), sender)
            case "POST", ["v1", signal] if signal in LISTS:
                return await self._export(connection, head, access, signal)
            case "GET", ["v1", "streams", name]:
                access.check_secret(head)
                await _skip(connection)
                return await self._position(head, _stream_name(name))
            case "GET", ["v1", "streams", name, "requests", reference]:
                access.check_secret(head)
                await _skip(connection)
                return await self._poll(head, _stream_name(name), reference)
            case _, ["v1", signal] if signal in LISTS:
                raise Problem("http-method", f"{head.method[:16]} is not for this path", {"Allow": "POST, OPTIONS"})
            case _, [""] | ["v1", "streams", _] | ["v1", "streams", _, "requests", _]:
                raise Problem(
                    "http-method", f"{head.method[:16]} is not for this path", {"Allow": "GET, POST, OPTIONS"}
                )
        raise Problem("http-no-such-path", "there is POST and GET /v1/streams/NAME; GET / shows how to send")

    async def _post(self, connection: HttpConnection, head: RequestHead, name: str, sender: str) -> Answer:
        media_type(head)
        check_encoding(head.get("content-encoding"))
        token = self._token(head)
        instance = self._instance(head.get("wallaroo-instance"), token)
        self._admit(head)
        client = await self._opened(instance, head)
        held = _HeldBytes(client)
        try:
            body = await self._decompressed(head, await self._body(connection, head, held), held)
            taken = take(head, body, self._options.event_time_unit, self._options.max_frame_bytes)
        finally:
            held.release()
        if not len(taken.messages):
            return _json(HTTPStatus.OK, {"committed": 0, "reference": None})
        if client.ended or (stream := client.stream(name)) is None:
            raise self._lost(client, head, client.ended)
        size = sum(map(len, taken.messages.values))
        count = len(taken.messages)
        ticket = self._send(head, instance, stream, taken, token)
        for counter, more in (("door-requests", 1), ("door-messages", count), ("door-bytes", size)):
            self._ground.host.count(counter, more)
        if sender:
            self._ground.host.count(f"door-requests:{sender}", 1)
        return await self._answered(head, instance, name, ticket, count, client)

    async def _export(self, connection: HttpConnection, head: RequestHead, access: HttpAccess, signal: str) -> Answer:
        """Take an OTLP request. Its errors have OTLP's form, in the media type of the request."""
        kind = head.get("content-type").partition(";")[0].strip().lower()
        try:
            sender = access.check_secret(head)
            if kind not in (JSON, PROTOBUF):
                raise Problem("http-media-type", f"the Content-Type is {kind[:64]!r}; OTLP has {PROTOBUF} and {JSON}")
            check_encoding(head.get("content-encoding"))
            self._admit(head)
            until = due(None)
            held = _HeldBytes(await self._otlp.opened(until))
            try:
                body = await self._body(connection, head, held)
                if kind == JSON or not body.startswith(GZIP):
                    body = await self._decompressed(head, body, held)
            finally:
                held.release()
            if kind == JSON and not (body := body.strip()).startswith(b"{"):
                raise Problem("http-body-unreadable", "a request as JSON is an object")
            await self._otlp.export(signal, body, until, sender)
        except Problem as found:
            problem = of_otlp(found)
            self._ground.host.refuse(problem.code, connection.stream.peer, "", problem.detail)
            form, media = (as_json, JSON) if kind == JSON else (packed, PROTOBUF)
            answer = Answer(problem.status, form(problem), media)
            answer.fields.update(problem.headers)
            return answer
        # Without a partial success: all was accepted.
        return Answer(HTTPStatus.OK, b"{}", JSON) if kind == JSON else Answer(HTTPStatus.OK, b"", PROTOBUF)

    def _admit(self, head: RequestHead) -> None:
        """Refuse a body that is too long, and any while the worker leaves or has no memory."""
        length = head.number("content-length")
        if length is not None and length > self._options.http_max_body:
            raise _too_long(self._options.http_max_body)
        if self.leaving:
            raise Problem("http-send-again", f"the worker leaves: {self.leaving}; send again")
        if not self._ground.host.eases():
            raise Problem("http-full", "the worker's memory is full (memoryBudget); send again")

    async def _body(self, connection: HttpConnection, head: RequestHead, held: _HeldBytes) -> bytes:
        """The whole body as it was sent. Its bytes count as used memory while they come."""
        if head.get("expect").lower() == "100-continue":
            connection.go_on()
        chunks: list[bytes] = []
        whole = connection.body_at_hand()
        if whole is None:
            size = 0
            async for chunk in connection.body():
                size += len(chunk)
                if size > self._options.http_max_body:
                    raise _too_long(self._options.http_max_body)
                self._grow(held, len(chunk))
                chunks.append(chunk)
            whole = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        elif len(whole) > self._options.http_max_body:
            raise _too_long(self._options.http_max_body)
        return whole

    async def _decompressed(self, head: RequestHead, whole: bytes, held: _HeldBytes) -> bytes:
        """A body without its encoding. Both count as used memory."""
        encoding = head.get("content-encoding").lower()
        if encoding in ("", "identity"):
            return whole
        chunks: list[bytes] = []
        for piece in decompressed(encoding, whole, self._options.http_max_body):
            self._grow(held, len(piece))
            chunks.append(piece)
            await asyncio.sleep(0)
        return b"".join(chunks)

    def _grow(self, held: _HeldBytes, size: int) -> None:
        held.add(size)
        if not self._ground.host.grows():
            raise Problem("http-full", "the worker's memory is full (memoryBudget) within this request; send again")

    def _send(self, head: RequestHead, instance: str, stream: DoorStream, taken: Taken, token: int | None) -> Ticket:
        """Have the worker take the messages that it does not have; the ticket is kept when all are committed."""
        if token is not None:
            return tokens.send(self._ground, instance, stream, taken.messages, token)
        key = head.get("idempotency-key")
        identities = taken.identities
        if key:
            identities = [f"\0{key}\0{at}" for at in range(len(taken.messages))]
        messages, last = taken.messages, 0
        if identities is not None:
            known = {at: self._repeats.known(instance, stream.name, one) for at, one in enumerate(identities)}
            repeated = {at: reference for at, reference in known.items() if reference is not None}
            if repeated:
                last = max(repeated.values())
                messages = without(messages, list(repeated))
                identities = [one for at, one in enumerate(identities) if at not in repeated]
            if not len(messages):
                return stream.wait(last)
        first = stream.next_reference(time.time_ns())
        count = len(messages)
        ticket = stream.send(messages, first)
        if identities is not None:
            self._repeats.remember(instance, stream, identities, range(first, first + count))
        return ticket

    async def _answered(
        self, head: RequestHead, instance: str, name: str, ticket: Ticket, count: int, client: DoorClient
    ) -> Answer:
        prefer = head.get("prefer").lower()
        seconds = self._options.http_timeout
        if asynchronous := "respond-async" in prefer:
            found = _PREFER_WAIT.search(prefer)
            seconds = min(seconds, float(found[1]) if found else 0.0)
        elif answered_when_received(name, self._options.door_received):
            seconds = 0.0
        if await self._kept(ticket, seconds):
            return _json(HTTPStatus.OK, {"committed": count, "reference": ticket.reference})
        if ticket.kept is False:
            raise self._lost(client, head, ticket.reason)
        self._asked_for[(instance, name, ticket.reference)] = (ticket, count)
        while len(self._asked_for) > REMEMBERED:
            self._asked_for.popitem(last=False)
        place = f"/v1/streams/{quote(name, safe='')}/requests/{ticket.reference}"
        if instance != self._ground.own_instance(DOOR):
            place += f"?instance={quote(instance.removeprefix(f'{DOOR}/'), safe='')}"
        answer = _json(HTTPStatus.ACCEPTED, {"received": count, "reference": ticket.reference})
        answer.fields["Location"] = place
        if asynchronous:
            answer.fields["Preference-Applied"] = "respond-async"
        return answer

    async def _poll(self, head: RequestHead, name: str, reference: str) -> Answer:
        instance = self._instance(head.query.get("instance", ""), 0)
        text = head.query.get("wait", "0")
        if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text):
            raise Problem("http-field-unreadable", f"wait is {text[:64]!r}; it is a number of seconds")
        number = int(reference) if reference.isascii() and reference.isdigit() and len(reference) <= 20 else -1
        found = self._asked_for.get((instance, name, number))
        if found is None:
            raise Problem(
                "http-request-unknown",
                "this worker has no such request: it was answered long ago, or the worker that had it is gone. Send "
                "the messages again, with their token where they have one",
            )
        ticket, count = found
        if await self._kept(ticket, min(LONGEST_POLL, float(text))):
            return _json(HTTPStatus.OK, {"committed": count, "reference": ticket.reference})
        if ticket.kept is False:
            raise Problem("http-send-again", f"{ticket.reason}; send the messages again")
        answer = _json(HTTPStatus.ACCEPTED, {"received": count, "reference": ticket.reference})
        answer.fields["Location"] = head.target.partition("?")[0] + "".join(
            f"?instance={quote(value, safe='')}" for value in [head.query.get("instance", "")] if value
        )
        return answer

    async def _position(self, head: RequestHead, name: str) -> Answer:
        instance = self._instance(head.get("wallaroo-instance") or head.query.get("instance", ""), 0)
        client = await self._opened(instance, head)
        committed = tokens.committed(self._ground, client, name)
        shown = {"stream": name, "instance": instance.removeprefix(f"{DOOR}/"), "committed": committed}
        return _json(HTTPStatus.OK, shown)

    async def _opened(self, instance: str, head: RequestHead) -> DoorClient:
        """The session of an instance, once it is open. Raises :class:`Problem` when it does not open."""
        client = self._ground.client(instance)
        if not await self._kept(client.opening, OPEN_SECONDS):
            if client.ended:
                raise self._lost(client, head, client.ended)
            raise Problem("http-not-ready", "the worker is not ready: no query reads the receiver yet; send again")
        return client

    def _lost(self, client: DoorClient, head: RequestHead, reason: str) -> Problem:
        """Why a request cannot be answered: another worker has its instance, or the session has ended."""
        if client.slot is None or client.slot == self._ground.slot:
            return Problem("http-send-again", f"{reason}; send again")
        why = f"instance {client.instance!r} is served by the worker of slot {client.slot}"
        if not client.address or not self._options.http_port:
            return Problem("http-elsewhere", f"{why}; send there, or again later")
        host, _ = parse_address(client.address)
        scheme = "https" if self._options.tls_certificate else "http"
        place = f"{scheme}://{format_address(host, self._options.http_port + client.slot)}{head.target}"
        return Problem("http-elsewhere", f"{why}, at {place}", {"Location": place})

    async def _kept(self, ticket: Ticket, seconds: float) -> bool:
        """Wait for a ticket, for some seconds at most; returns whether it is kept."""
        self._waits += 1
        try:
            return await kept(ticket, seconds)
        finally:
            self._waits -= 1

    def _token(self, head: RequestHead) -> int | None:
        token = head.number("wallaroo-token")
        if token is not None and not 0 < token <= GREATEST_TOKEN:
            raise Problem("http-field-unreadable", f"wallaroo-token is {token}; it is 1 to {GREATEST_TOKEN}")
        return token

    def _instance(self, name: str, token: int | None) -> str:
        """The instance of a client. One without a name is that of the worker, which may have no token."""
        if not name:
            if token:
                raise Problem("http-field-unreadable", "wallaroo-token needs wallaroo-instance, the client's own name")
            return self._ground.own_instance(DOOR)
        with contextlib.suppress(UnicodeError):
            name = name.encode("latin-1").decode("utf-8")
        instance = f"{DOOR}/{name}"
        if _OWN.fullmatch(name) or len(instance.encode()) > MAX_INSTANCE_BYTES:
            raise Problem(
                "http-field-unreadable",
                f"wallaroo-instance has 1 to {MAX_INSTANCE_BYTES - len(DOOR) - 1} bytes, and is not worker-NUMBER",
            )
        return instance

    def _page(self, head: RequestHead) -> bytes:
        host = head.get("host") or "127.0.0.1"
        scheme = "https" if self._options.tls_certificate else "http"
        senders = self._ground.senders
        secret = "" if senders.open else f" -H 'Authorization: Bearer {'TOKEN' if senders.path else 'COOKIE'}'"
        place = f"{scheme}://{host}/v1/streams/orders"
        return (
            f"curl {place}{secret} -H 'Content-Type: application/json' -d '{{\"order\": 1}}'\n"
            f"curl {place}{secret} -H 'Content-Type: application/x-ndjson' --data-binary @orders.ndjson\n"
            f"curl {place}{secret} -H 'Content-Type: application/json' -d '{{\"order\": 2}}' "
            "-H 'Wallaroo-Instance: shop-1' -H 'Wallaroo-Token: 1'\n"
        ).encode()


class _HeldBytes:
    """The bytes of a request that is not complete, counted for a session."""

    def __init__(self, client: DoorClient) -> None:
        self._client = client
        self._size = 0

    def add(self, size: int) -> None:
        """More bytes have come."""
        self._size += size
        self._client.hold(size)

    def release(self) -> None:
        """The request is complete or has ended."""
        size, self._size = self._size, 0
        if size:
            self._client.hold(-size)


async def _skip(connection: HttpConnection) -> None:
    """Read the body of a request that has none to speak of."""
    size = 0
    async for chunk in connection.body():
        size += len(chunk)
        if size > SKIPPED_BYTES:
            raise Problem("http-body-too-large", "a body is for POST alone")


def _stream_name(name: str) -> str:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        raise Problem("http-field-unreadable", f"the name of a stream has 1 to {MAX_NAME_BYTES} bytes")
    return name


def _too_long(most: int) -> Problem:
    return Problem("http-body-too-large", f"the body has more than {most} bytes (http.maxBody); divide it")


def _json(status: HTTPStatus, value: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(value).encode(), JSON)
