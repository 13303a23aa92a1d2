"""The calls of the driver and of the reading tasks to a worker. Source: ``docs/architecture.md#the-picture``."""

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
from wallaroo_spark.inner.sample_call import MessageSample, SampleQuestion
from wallaroo_spark.inner.trust import NAME, fleet_keys, local_socket
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, Reference, References, StreamKey
from wallaroo_spark.transport import parse_address, read_authority

SILENCE_SECONDS = 20.0
"""How long a read waits for the next rows or the next heartbeat. A choice: a worker sends a heartbeat every second."""
READ_SECONDS = 120.0
"""How long one request for rows may last. A choice: the rest is requested again then, so no rows are lost."""


_NOT_VERIFIED = ("handshake failed", "peer certificate", "hostname verification")
"""Parts of gRPC's error texts, in lower case, when TLS fails; gRPC has no error code for that."""
_CLOSED_AT_ONCE = re.compile("failed to connect.*(socket closed|connection reset)", re.IGNORECASE)
"""gRPC's error text when the peer closes a connection before the first call, as it does without its certificate."""


@dataclass(frozen=True)
class Trust:
    """The authorities by which workers' certificates are verified. It is pickled, so reading tasks need no file."""

    roots: bytes = field(default=b"", repr=False)
    """The PEM certificates of the authorities; empty: the authorities that the operating system trusts."""

    @classmethod
    def of(cls, options: Options) -> Trust | None:
        """The trust that follows from the options; None when the workers have no certificate of their own.

        The option for the workers' authority alone is enough: a caller does not need the workers' certificate.
        Raises :class:`ConfigurationError` with the name of the option whose file cannot be used.
        """
        if not (options.tls_certificate or options.tls_workers_ca or options.tls_ca):
            return None
        name, ca = ("tls.workersCa", options.tls_workers_ca) if options.tls_workers_ca else ("tls.ca", options.tls_ca)
        try:
            return cls(read_authority(ca)) if ca else cls()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"option {name}: {error.message}", code=error.code, option=name, **error.fields
            ) from None


class WorkerClient:
    """Calls to one worker's inner port. Every method raises :class:`TransportError` when the worker does not answer.

    With ``trust``, the client connects only to a worker whose certificate is signed by one of its authorities and names
    the host in ``address``. Without ``trust``, it connects only to a worker with a certificate made from the fleet's
    token; unless ``local`` is false, it uses the worker's local socket if the worker runs on this machine. No option
    disables these checks.

    The error's reason is ``tls`` for a worker that cannot be verified, and ``timeout`` for a worker that is silent for
    too long. After a timeout the next call uses a new connection, because the old one may be half open.
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
        """A new Flight client. It connects at its first call."""
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
        """Close the connection."""
        self._client.close()

    def available(self, version: int, wait: float, *, connectors: bool = True) -> dict[str, Any]:
        """Wait up to ``wait`` seconds until the version of the worker's buffer differs from ``version``.

        Returns the version, the size of the buffer and, with ``connectors``, the connectors, which cost more than all
        the rest.
        """
        body = {"version": version, "wait": wait, "connectors": connectors}
        return self._act("available", body, self._timeout + wait)

    def plan(self, question: PlanQuestion) -> PlanAnswer:
        """Ask how far a batch may go on this worker."""
        return PlanAnswer.decode(self._call("plan", question.encode()))

    def held(self) -> dict[StreamKey, Reference | None]:
        """The streams of which the worker holds rows, with the committed references that the worker knows."""
        return decode_starts(self._call("held", b""))

    def owes(self, start: Starts) -> bool:
        """Whether a connector waits for an ACK of messages up to ``start``, all of which Spark has committed."""
        return bool(json.loads(self._call("owes", encode_starts(start)))["owes"])

    def rewind(self, epoch: int, batch: int, references: References) -> None:
        """Notify the worker that the query continues from exactly these references."""
        self.tell(Notice(REWIND, epoch, batch, references))

    def committed(self, epoch: int, batch: int, references: References) -> None:
        """Notify the worker that Spark has committed ``batch``, with the references changed since the last call."""
        self.tell(Notice(COMMITTED, epoch, batch, references))

    def tell(self, notice: Notice) -> None:
        """Send a notice. A notice that is sent to several workers is encoded once."""
        self._call(notice.action, notice.body)

    def status(self) -> dict[str, Any]:
        """The worker's status."""
        return self._act("status", {})

    def inspect(self, most: int, instance: str = "", stream: str = "", timeout: float | None = None) -> dict[str, Any]:
        """The worker's status with its sessions, instances and streams: at most ``most`` instances and streams.

        ``instance`` and ``stream`` (a name, or an id in decimal digits) restrict it to one instance or stream.
        """
        return self._act("status", {"most": most, "instance": instance, "stream": stream}, timeout)

    def story(self) -> list[str]:
        """The worker's last events, each with the instructions that it caused: one line for each, the oldest first."""
        events: list[str] = self._act("story", {})["events"]
        return events

    def sample(self, question: SampleQuestion) -> MessageSample:
        """Copies of some messages that the worker holds; the tap token suffices."""
        return MessageSample.decode(self._call("sample", question.encode(), self._timeout + question.wait))

    def traced(self, after: int) -> list[dict[str, Any]]:
        """The messages that were followed to their acknowledgement, with a serial number greater than ``after``."""
        messages: list[dict[str, Any]] = self._act("traced", {"after": after})["messages"]
        return messages

    def stop(self, reason: str) -> None:
        """Ask the worker to shut down in order."""
        self._act("stop", {"reason": reason})

    def read(
        self,
        ranges: Sequence[PlannedRange],
        *,
        boundaries: bool,
        wait: float,
        silence: float = SILENCE_SECONDS,
        leaving: tuple[str, int] = ("", 0),
    ) -> Iterator[tuple[pa.RecordBatch, list[Mark]]]:
        """The rows of the ranges, as ranges become complete; ends after ``wait`` seconds in which none did.

        ``leaving`` has the token of the streams that are leaving in the batch's plan (empty when there are none), and
        the time of the plan behind which the batch starts.

        Each batch comes with marks. A range without a final mark is not complete at the worker, or was left out
        because the request has lasted for its limit; the caller has to ask for it again. Raises
        :class:`TransportError` when the worker sends nothing for ``silence`` seconds.
        """
        ticket = {"ranges": [planned.to_json() for planned in ranges], "wait": wait, "leaving": leaving}
        reading = _Reading(self._client, json.dumps(ticket).encode(), self._headers)
        unpacker = Unpacker(boundaries=boundaries)
        rows = (unpacker.unpack(data, text) for data, text in reading.chunks())
        came = False
        try:
            for batch, marks in ReadAhead(rows, reading.cancel, silence):
                came = True
                # A worker's heartbeat is a batch without rows and marks.
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

    def _failed(self, call: str, error: Exception) -> TransportError:
        detail = str(error).split(". gRPC client debug context")[0]
        message = f"worker at {self.address} did not answer {call!r}: {detail}"
        if isinstance(error, flight.FlightTimedOutError | TimeoutError):
            # The old client is not closed, because another thread may be in a call; it ends when no thread uses it.
            self._client = self._connect()
            way_out = "check that its process runs and that the network between is not cut"
            return TransportError(
                f"{message}; {way_out}", code="worker-unreachable", address=self.address, reason="timeout"
            )
        if self._secured and any(sign in detail.lower() for sign in _NOT_VERIFIED):
            way_out = (
                "check the authority that is trusted here (tls.workersCa, or --tls-ca), that the worker's certificate "
                f"names {parse_address(self.address)[0]} (see advertise and innerAdvertise), and that both sides use "
                "TLS"
            )
            return TransportError(f"{message}; {way_out}", code="worker-unverified", address=self.address, reason="tls")
        if self._local is not None and isinstance(error, flight.FlightUnavailableError):
            # The socket's file may be of a process that was killed, or of a sandbox that this process cannot reach.
            self._local = None
            self._client = self._connect()
        if not self._secured and (
            _CLOSED_AT_ONCE.search(detail) or any(sign in detail.lower() for sign in _NOT_VERIFIED)
        ):
            message += "; check that both sides use TLS, or neither (tls.workersCa), and that the token is this fleet's"
        return TransportError(message, code="worker-unreachable", address=self.address)


class _Reading:
    """One request for rows. The thread that reads the answer makes it; another thread may cancel it at any moment."""

    def __init__(self, client: flight.FlightClient, ticket: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._client = client
        self._ticket = flight.Ticket(ticket)
        self._options = flight.FlightCallOptions(timeout=READ_SECONDS, headers=headers)
        self._reader: Any = None
        self._cancelled = False

    def chunks(self) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """The batches, each with its metadata. A worker that is silent blocks even the first call."""
        reader = self._reader = self._client.do_get(self._ticket, self._options)
        try:
            # The cancelling thread sets this before it looks for the reader, so that one of both threads ends the call.
            if not self._cancelled:
                for chunk in reader:
                    yield chunk.data, chunk.app_metadata.to_pybytes()
        finally:
            if self._cancelled:
                reader.cancel()

    def cancel(self) -> None:
        """End the request; one that has not begun ends at its beginning."""
        self._cancelled = True
        if self._reader is not None:
            self._reader.cancel()
