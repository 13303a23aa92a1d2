"""The worker's inner port: an Arrow Flight server for the reading tasks and the driver.

Actions take and return JSON, or bytes of :mod:`wallaroo_spark.inner.calls` and :mod:`wallaroo_spark.inner.calls`.
Every call must carry the fleet's token. ``status`` and ``story`` also accept the status token, which any reader of the
registry can see; these and ``sample`` accept the tap token, which only the driver gives out. Where connectors use TLS,
so does this port, with the same certificate. It authenticates callers only by the token, even where connectors must
present certificates, because a driver or a reading task has the token wherever Spark runs it.

``status`` without a body returns a worker's counts, and with one what :func:`~.inspection.inspect` finds too.
``available`` waits until the buffer changes, ``plan`` returns how far a batch may go, ``held`` the streams with rows,
``owes`` whether an acknowledgement is still due; ``followed`` waits until the worker needs references of more scopes,
and names them; ``rewind`` and ``committed`` report the query's position; ``stop``
ends the worker, ``sample`` copies a few held rows, ``unreadable`` tells of record batches that a task has left out.
``do_get`` streams planned ranges. Source: ``docs/decisions/flight.md``; ``docs/architecture.md#the-picture``.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from wallaroo_spark.columnar import STORED_SCHEMA
from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.inner import calls
from wallaroo_spark.inner.calls import PlanQuestion, SampleQuestion, decode_starts, encode_starts
from wallaroo_spark.inner.client import FleetKeys, fleet_keys, local_socket, status_token, tap_token
from wallaroo_spark.references import PlannedRange
from wallaroo_spark.steps import Step, passed
from wallaroo_spark.transport import format_address
from wallaroo_spark.worker.buffer.delivery import NOTHING_YET, gather
from wallaroo_spark.worker.buffer.found import FoundRanges
from wallaroo_spark.worker.inspection import InspectionQuestion, inspect
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.reads import Reads
from wallaroo_spark.worker.samples import Samples

log = one_line(logging.getLogger("wallaroo_spark.worker.flight"))

T = TypeVar("T")
_WITH_STATUS_TOKEN = ("status", "story")
"""The actions that accept the status token."""
_WITH_TAP_TOKEN = (*_WITH_STATUS_TOKEN, "sample")
"""The actions that accept the tap token."""
_CALL_SECONDS = 30.0
"""Limit of a call on the event loop, in seconds."""
_MADE_SECONDS = 60.0
"""Age in seconds from which a socket's file may be removed. Opening a socket takes far less."""
_PATIENCE = 1.0
"""Seconds between two heartbeats of a waiting read; its client takes a longer silence for a lost connection.

It is a twentieth of the client's limit (``SILENCE_SECONDS``).
"""


class Served(Protocol):
    """The worker of an inner port. Its state belongs to the thread of an event loop; calls arrive on other threads."""

    @property
    def reads(self) -> Reads | None:
        """The waiting reads; None until the worker has its lease."""

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the loop from another thread, and wait up to ``timeout`` seconds for it."""

    async def on_loop(self, work: Callable[[WorkerState], T]) -> T:
        """Call a function on the state."""

    async def apply(self, event: e.Event) -> None:
        """Pass an event to the state."""

    def stop_from_outside(self, reason: str) -> None:
        """Make the worker shut down in order."""

    def status(self) -> dict[str, Any]:
        """The worker's status as JSON-serializable values; on the loop's thread."""


class _Limited(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no type information
    """Marks a call with a token that is for some actions only."""

    def __init__(self, actions: tuple[str, ...], name: str) -> None:
        super().__init__()
        self.actions = actions
        self.name = name


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no type information
    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()
        self._limited = [
            (f"Bearer {status_token(token)}".encode(), _WITH_STATUS_TOKEN, "status token"),
            (f"Bearer {tap_token(token)}".encode(), _WITH_TAP_TOKEN, "tap token"),
        ]

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Limited | None:
        """Refuse a call without a token; a token for some actions leaves its mark on the call."""
        given = headers.get("authorization", [""])[0].encode("utf-8", "replace")
        if hmac.compare_digest(given, self._expected):
            return None
        for token, actions, name in self._limited:
            if hmac.compare_digest(given, token) and info.method == flight.FlightMethod.DO_ACTION:
                return _Limited(actions, name)
        raise flight.FlightUnauthenticatedError("the fleet's token is missing or wrong; check the option token")


class InnerPort:
    """A worker's inner port: it serves calls over TLS, from its creation until :meth:`shutdown`, and on a local socket.

    ``keys`` are the fleet's keys; without them they are derived from the token. ``pair`` is the certificate chain to
    present, and its key, as PEM. Without it the server presents the fleet's own certificate, and callers on this
    machine can use the local socket (:meth:`serve_locally`). Callers must always present the fleet's certificate. With
    ``port`` 0 the system chooses a port. Raises :class:`ConfigurationError` for an empty token, which any caller could
    present.
    """

    def __init__(
        self,
        worker: Served,
        host: str,
        token: str,
        keys: FleetKeys | None = None,
        pair: tuple[bytes, bytes] | None = None,
        port: int = 0,
    ) -> None:
        if not token:
            raise ConfigurationError(
                "option token: the worker's inner port is not served without a token; name one", code="option-missing"
            )
        keys = keys or fleet_keys(token)
        self._worker = worker
        self._token = token
        self._local_too = pair is None
        self._servers = [
            FlightServer(
                worker,
                f"grpc+tls://{format_address(host or '0.0.0.0', port)}",
                token,
                tls_certificates=[pair or (keys.certificate, keys.key)],
                verify_client=True,
                root_certificates=keys.authority,
            )
        ]
        self._socket: Path | None = None

    @property
    def port(self) -> int:
        """Number of the port."""
        return int(self._servers[0].port)

    def serve_locally(self, address: str) -> None:
        """Listen on a local socket for callers on this machine, which know ``address``. If that fails they use TLS."""
        path = local_socket(address, self._token) if self._local_too else None
        if path is None:
            return
        _sweep(path.parent)
        try:
            self._servers.append(FlightServer(self._worker, f"grpc+unix://{path}", self._token))
            self._socket = path
        except (OSError, pa.ArrowException) as error:
            log.warning("callers on this machine use TLS, because the local socket cannot be opened: %s", error)

    def shutdown(self) -> None:
        """Accept no more calls."""
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
        for server in self._servers:
            server.shutdown()


def _sweep(folder: Path) -> None:
    """Remove the sockets of processes that were killed."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            # A new socket may not listen yet.
            old = time.time() - path.stat().st_mtime > _MADE_SECONDS
            if old and path.is_socket() and _nobody_listens(path):
                path.unlink()


def _nobody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no type information
    """Answers the calls at one location. ``tls`` are Arrow's arguments for certificates."""

    def __init__(self, worker: Served, location: str, token: str, **tls: Any) -> None:
        super().__init__(location, middleware={"token": _TokenCheck(token)}, **tls)
        assert worker.reads is not None
        self._worker = worker
        self._reads = worker.reads
        self._samples = Samples(worker.reads)
        self._actions: dict[str, Callable[[bytes], bytes]] = {
            "available": _json(self._available),
            "plan": self._plan,
            "held": self._held,
            "followed": self._followed,
            "owes": self._owes,
            "committed": self._committed,
            "rewind": self._rewind,
            "status": _json(self._status),
            "story": _json(lambda _: {"events": self._ask(lambda state: state.story.lines())}),
            "sample": self._sample,
            "unreadable": _json(self._unreadable),
            "traced": _json(self._traced),
            "stop": _json(self._stop),
        }

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The names of all actions."""
        return [(name, "") for name in self._actions]

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Run one action. The result is one item of bytes."""
        limited = context.get_middleware("token")
        if limited is not None and action.type not in limited.actions:
            needed = "the fleet's token, or its tap token" if action.type in _WITH_TAP_TOKEN else "the fleet's token"
            raise flight.FlightUnauthorizedError(f"the {limited.name} does not permit this action; use {needed}")
        run = self._actions.get(action.type)
        if run is None:
            raise flight.FlightServerError(f"there is no action {action.type!r}; there are {', '.join(self._actions)}")
        return iter([run(action.body.to_pybytes())])

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Stream planned ranges as they become complete. Ranges that are incomplete at the time limit are left out."""
        request = json.loads(ticket.ticket)
        ranges = {index: PlannedRange.from_json(planned) for index, planned in enumerate(request["ranges"])}
        token, behind = request.get("leaving", ("", 0))
        if token:
            self._tell(e.ReadBegan(token, behind))
        return flight.GeneratorStream(STORED_SCHEMA, self._batches(context, ranges, request["wait"]))

    def _batches(
        self, context: Any, ranges: dict[int, PlannedRange], wait: float
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        until = time.monotonic() + wait
        request = self._reads.begin(ranges)
        try:
            while ranges and not context.is_cancelled():
                waits = min(_PATIENCE, until - time.monotonic())
                found = self._worker.call(self._found(ranges, waits), _CALL_SECONDS)
                if not found and time.monotonic() >= until:
                    return
                if not found:
                    yield NOTHING_YET
                ranges = {index: planned for index, planned in ranges.items() if index not in found}
                for number, batch in enumerate(gather(found)):
                    if number:
                        passed(Step.RANGE_HALF_SENT)
                    yield batch
                request.missing = len(ranges)
            if not ranges:
                request.done_at = time.monotonic()
        finally:
            request.ended = True

    async def _found(self, ranges: dict[int, PlannedRange], waits: float) -> FoundRanges:
        """Find ranges, and note the times for messages that are followed for traces."""
        traced = await self._worker.on_loop(lambda state: state.connections.traced)
        if traced is None:
            return await self._reads.find(ranges, waits)
        traced.planned(ranges.values(), time.time_ns() // 1000)
        found = await self._reads.find(ranges, waits)
        traced.read([ranges[index] for index in found], time.time_ns() // 1000)
        return found

    def _ask(self, work: Callable[[WorkerState], T]) -> T:
        return self._worker.call(self._worker.on_loop(work), _CALL_SECONDS)

    def _tell(self, event: e.Event) -> None:
        self._worker.call(self._worker.apply(event), _CALL_SECONDS)

    def _status(self, body: dict[str, Any]) -> Any:
        if not body:
            return self._ask(lambda state: self._worker.status())
        wanted = InspectionQuestion(
            int(body.get("most", 0)), str(body.get("instance", "")), str(body.get("stream", ""))
        )
        return self._ask(lambda state: {**self._worker.status(), **inspect(state, self._reads.requests, wanted)})

    def _available(self, body: dict[str, Any]) -> Any:
        wait = float(body["wait"])
        version = self._worker.call(self._reads.changed_since(int(body["version"]), wait), wait + _CALL_SECONDS)
        answer = self._ask(
            lambda state: {
                "version": version,
                "ready": state.ready,
                "epoch": state.epoch,
                "now": time.time_ns() // 1000,
                "buffered_bytes": state.buffer.held,
                "ends": state.has_ends_to_report,
                **({"connectors": state.activity()} if body.get("connectors", True) else {}),
            }
        )
        if answer["buffered_bytes"]:
            passed(Step.BUFFERED)
        return answer

    def _plan(self, body: bytes) -> bytes:
        question = PlanQuestion.decode(body)
        return self._ask(lambda state: state.offer(question)).encode()

    def _held(self, body: bytes) -> bytes:
        return encode_starts(
            self._ask(lambda state: {stream.key: stream.committed for stream in state.buffer.with_rows()})
        )

    def _owes(self, body: bytes) -> bytes:
        start = {key: reference for key, reference in decode_starts(body).items() if reference is not None}
        return json.dumps(self._ask(lambda state: {"owes": state.buffer.owes(start)})).encode()

    def _followed(self, body: bytes) -> bytes:
        asked = json.loads(body)
        cursor, wait, everything = int(asked["cursor"]), float(asked["wait"]), bool(asked["everything"])

        async def answer() -> bytes:
            following = await self._worker.on_loop(lambda state: state.connections.following)
            if following.cursor == cursor and not everything:
                await self._reads.next_question(wait)
            return following.answer(cursor, everything).encode()

        return self._worker.call(answer(), wait + _CALL_SECONDS)

    def _committed(self, body: bytes) -> bytes:
        passed(Step.REFERENCES_RECEIVED)
        notice = calls.decode(body)
        now, told_at = time.monotonic(), time.time_ns() // 1000
        event = e.Committed(**notice._asdict(), now=now, told_at=told_at)
        self._worker.call(self._commit(event), _CALL_SECONDS)
        passed(Step.ACK_SENT)
        return b""

    async def _commit(self, event: e.Committed) -> None:
        await self._worker.apply(event)
        traced = await self._worker.on_loop(lambda state: state.connections.traced)
        if traced is not None:
            traced.acknowledged(time.time_ns() // 1000)

    def _traced(self, body: dict[str, Any]) -> Any:
        return {"messages": self._ask(lambda state: state.traced(int(body["after"])))}

    def _rewind(self, body: bytes) -> bytes:
        notice = calls.decode(body)
        fields = notice._asdict()
        del fields["ended"]
        self._tell(e.Rewound(**fields))
        return b""

    def _sample(self, body: bytes) -> bytes:
        question = SampleQuestion.decode(body)
        return self._worker.call(self._samples.take(question), question.wait + _CALL_SECONDS).encode()

    def _unreadable(self, body: dict[str, Any]) -> Any:
        """A reading task could not read record batches of a door, and left them out."""

        def noted(state: WorkerState) -> None:
            state.connections.counts["unreadable-batches"] += int(body["batches"])
            state.connections.note("kafka-unreadable", "", str(body["instance"]), str(body["reason"]))

        self._ask(noted)
        return {}

    def _stop(self, body: dict[str, Any]) -> Any:
        self._worker.stop_from_outside(body["reason"])
        return {}


def _json(action: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """Convert an action on JSON values to an action on their text."""
    return lambda body: json.dumps(action(json.loads(body) if body else {})).encode()
