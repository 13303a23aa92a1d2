"""What the driver and the reading tasks ask of a worker. Source: ``docs/architecture.md#the-picture``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from wallaroo_spark.errors import ConfigurationError, TransportError
from wallaroo_spark.inner.notices import COMMITTED, REWIND, Notice
from wallaroo_spark.inner.plan_call import PlanAnswer, PlanQuestion, Starts, decode_starts, encode_starts
from wallaroo_spark.inner.read_ahead import ReadAhead
from wallaroo_spark.inner.rows import Mark, Unpacker
from wallaroo_spark.inner.trust import NAME, fleet_keys, local_socket
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, Reference, References, StreamKey
from wallaroo_spark.transport import parse_address, read_authority

SILENCE_SECONDS = 20.0
"""How long a read waits for the next rows, or for the word that there are none yet, which comes every second."""
READ_SECONDS = 120.0
"""How long one request for rows may last. What is left then is asked for anew, so nothing is lost by it."""


_NOT_VERIFIED = ("handshake failed", "peer certificate", "hostname verification")
"""What gRPC says, in whatever case, when TLS fails; it has no code for it."""
_CLOSED_AT_ONCE = re.compile("failed to connect.*(socket closed|connection reset)", re.IGNORECASE)


@dataclass(frozen=True)
class Trust:
    """By which authorities a worker's certificate is verified; pickled into reading tasks, which need no file then.

    ``roots`` are the PEM certificates of these authorities; empty means those that the system trusts.
    """

    roots: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, options: Options) -> Trust | None:
        """What the options say; None when the workers speak plain text.

        Whoever knows the workers' authority alone, and not their certificate, knows enough to speak TLS with them.
        Raises :class:`ConfigurationError` naming the option whose file cannot be used.
        """
        if not (options.tls_certificate or options.tls_workers_ca or options.tls_ca):
            return None
        name, ca = ("tls.workersCa", options.tls_workers_ca) if options.tls_workers_ca else ("tls.ca", options.tls_ca)
        try:
            return cls(read_authority(ca)) if ca else cls()
        except ConfigurationError as error:
            raise ConfigurationError(f"option {name}: {error.message}", option=name, **error.fields) from None


class WorkerClient:
    """Calls to one worker's inner port. Every method raises :class:`TransportError` when the worker does not answer.

    With ``trust`` it speaks only to a worker whose certificate comes from there and names the host in ``address``, else
    only to one whose certificate comes from the fleet's token; there is no way around that. Without ``trust`` a worker
    on this machine is spoken to by a socket of its user's, unless ``local`` is false. A worker that cannot be verified
    raises an error with the reason ``tls``, one that is silent for too long an error with the reason ``timeout``; the
    next call then goes over a new connection, for the old one may be half open.
    """

    def __init__(
        self, address: str, token: str, timeout: float = 10.0, trust: Trust | None = None, local: bool = True
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._secured = trust is not None
        self._trust = trust
        self._token = token
        self._headers = [(b"authorization", f"Bearer {token}".encode())]
        self._local = local_socket(address, token) if trust is None and local else None
        self._client = self._connect()

    def _connect(self) -> flight.FlightClient:
        """A client of its own connection, which is made with the first call."""
        if self._local is not None and self._local.exists():
            return flight.connect(f"grpc+unix://{self._local}")
        keys = fleet_keys(self._token)
        shown: dict[str, Any] = {"cert_chain": keys.certificate, "private_key": keys.key}
        if self._trust is None:
            shown |= {"tls_root_certs": keys.authority, "override_hostname": NAME}
        elif self._trust.roots:
            shown |= {"tls_root_certs": self._trust.roots}
        return flight.connect(f"grpc+tls://{self.address}", **shown)

    def close(self) -> None:
        """Give the connection up."""
        self._client.close()

    def available(self, version: int, wait: float, *, connectors: bool = True) -> dict[str, Any]:
        """Wait up to ``wait`` seconds until the worker's buffer is at another version; its version and connectors.

        The connectors, which cost more than all the rest, are left out unless ``connectors``.
        """
        body = {"version": version, "wait": wait, "connectors": connectors}
        return self._act("available", body, self._timeout + wait)

    def plan(self, question: PlanQuestion) -> PlanAnswer:
        """How far a batch may go on this worker."""
        return PlanAnswer.decode(self._call("plan", question.encode()))

    def held(self) -> dict[StreamKey, Reference | None]:
        """The streams of which the worker holds rows, with their committed references as it knows them."""
        return decode_starts(self._call("held", b""))

    def owes(self, start: Starts) -> bool:
        """Whether a connector waits for an ACK of messages up to ``start``, all of which Spark has committed."""
        return bool(json.loads(self._call("owes", encode_starts(start)))["owes"])

    def rewind(self, epoch: int, batch: int, references: References) -> None:
        """The query goes on from exactly these references."""
        self.tell(Notice(REWIND, epoch, batch, references))

    def committed(self, epoch: int, batch: int, references: References) -> None:
        """Spark has committed ``batch``; the references that changed since the last call."""
        self.tell(Notice(COMMITTED, epoch, batch, references))

    def tell(self, notice: Notice) -> None:
        """Send a notice; one that several workers are sent is encoded once."""
        self._call(notice.action, notice.body)

    def status(self) -> dict[str, Any]:
        """The worker's status."""
        return self._act("status", {})

    def story(self) -> list[str]:
        """The worker's last events with the instructions that each has caused, a line each, the oldest first."""
        events: list[str] = self._act("story", {})["events"]
        return events

    def stop(self, reason: str) -> None:
        """Ask the worker to leave in good order."""
        self._act("stop", {"reason": reason})

    def read(
        self, ranges: Sequence[PlannedRange], *, boundaries: bool, wait: float, silence: float = SILENCE_SECONDS
    ) -> Iterator[tuple[pa.RecordBatch, list[Mark]]]:
        """The ranges' rows as they become complete, for up to ``wait`` seconds without any.

        With each batch come marks. A range without a final mark is not there, or was left out because the request has
        lasted long enough: ask for the rest. A worker from which nothing comes for ``silence`` seconds raises
        :class:`TransportError`.
        """
        ticket = {"ranges": [planned.to_json() for planned in ranges], "wait": wait}
        reading = _Reading(self._client, json.dumps(ticket).encode(), self._headers)
        unpacker = Unpacker(boundaries=boundaries)
        rows = (unpacker.unpack(data, text) for data, text in reading.chunks())
        came = False
        try:
            for batch, marks in ReadAhead(rows, reading.cancel, silence):
                came = True
                # A worker that has nothing yet says so in a batch without anything.
                if marks or batch.num_rows:
                    yield batch, marks
        except flight.FlightTimedOutError as error:
            if not came:
                raise self._failed("read", error) from None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._failed("read", error) from None

    def _act(self, name: str, body: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._call(name, json.dumps(body).encode(), timeout))
        return answer

    def _call(self, name: str, body: bytes, timeout: float | None = None) -> bytes:
        options = flight.FlightCallOptions(headers=self._headers, timeout=timeout or self._timeout)
        try:
            results = list(self._client.do_action(flight.Action(name, body), options))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._failed(name, error) from None
        answer: bytes = results[0].body.to_pybytes()
        return answer

    def _failed(self, what: str, error: Exception) -> TransportError:
        detail = str(error).split(". gRPC client debug context")[0]
        message = f"worker at {self.address} did not answer {what!r}: {detail}"
        if isinstance(error, flight.FlightTimedOutError | TimeoutError):
            # Not closed, since another thread may be in a call; the last one that uses it lets it go.
            self._client = self._connect()
            way_out = "its process may be stopped, or the network between be cut"
            return TransportError(f"{message}; {way_out}", address=self.address, reason="timeout")
        if self._secured and any(sign in detail.lower() for sign in _NOT_VERIFIED):
            way_out = (
                "check the authority that is trusted here (tls.workersCa, or --tls-ca), that the worker's certificate "
                f"names {parse_address(self.address)[0]} (see advertise and innerAdvertise), and that both sides use "
                "TLS"
            )
            return TransportError(f"{message}; {way_out}", address=self.address, reason="tls")
        if self._local is not None and isinstance(error, flight.FlightUnavailableError):
            # What a process that was killed left behind, or one in a sandbox of its own cannot use.
            self._local = None
            self._client = self._connect()
        if not self._secured and (
            _CLOSED_AT_ONCE.search(detail) or any(sign in detail.lower() for sign in _NOT_VERIFIED)
        ):
            message += "; check that both sides use TLS, or neither (tls.workersCa), and that the token is this fleet's"
        return TransportError(message, address=self.address)


class _Reading:
    """One request for rows, made by the thread that reads its answer; another may cancel it at any moment."""

    def __init__(self, client: flight.FlightClient, ticket: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._client = client
        self._ticket = flight.Ticket(ticket)
        self._options = flight.FlightCallOptions(timeout=READ_SECONDS, headers=headers)
        self._reader: Any = None
        self._cancelled = False

    def chunks(self) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """What comes, with the marks' text. A worker that says nothing at all holds even the first call up."""
        reader = self._reader = self._client.do_get(self._ticket, self._options)
        try:
            # Who cancels sets this first, so that one of both ends the call.
            if not self._cancelled:
                for chunk in reader:
                    yield chunk.data, chunk.app_metadata.to_pybytes()
        finally:
            if self._cancelled:
                reader.cancel()

    def cancel(self) -> None:
        """End it, as soon as it has begun."""
        self._cancelled = True
        if self._reader is not None:
            self._reader.cancel()
