"""The calls of the driver and of the reading tasks to a worker, with the certificates by which both ends are known.

Arrow's server receives a whole message, of any length, before our code can check whether the sender has the token. TLS
checks it earlier: both ends present a certificate that is signed with a key derived from the token, so a caller without
the token fails in the handshake and cannot send a message. Nobody has to distribute anything but the token. Within one
machine, a socket in a folder that only the workers' user can open has the same effect, and takes half the CPU time of
TCP. Source: ``docs/decisions/flight.md`` and ``docs/architecture.md#the-picture``.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from wallaroo_spark.errors import ConfigurationError, TransportError
from wallaroo_spark.inner import calls
from wallaroo_spark.inner.rows import Mark, ReadAhead, Unpacker
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.transport import parse_address, read_authority

NAME = "worker.wallaroo.internal"
"""The host name in the certificate that is made from the token. It identifies the fleet, not the worker's address."""

_STATUS = "status-"
_TAP = "tap-"
_TAP_TOKEN = re.compile(r"tap-[0-9a-f]{64}\.(status-[0-9a-f]{64})")
_LONGEST_PATH = 100
"""Most bytes of a socket's path. Systems allow a few more: 104 and above."""
_SALT = b"wallaroo-spark: the inner port of a fleet"
# With these values scrypt takes about 50 ms, so that a weak token cannot be found from a certificate by trying many.
_COST, _BLOCK, _LANES = 1 << 14, 8, 1
# The order of the curve P-256: a private key is a number from 1 to one less than this.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class FleetKeys:
    """The certificates of a fleet and a private key, as PEM texts."""

    authority: bytes
    """The certificate of the fleet's own authority; both ends of a call verify the other's certificate with it."""
    certificate: bytes
    """The certificate that workers and callers present; the authority has signed it."""
    key: bytes = field(repr=False)
    """The private key of ``certificate``, unencrypted."""


def status_token(token: str) -> str:
    """The token for callers that may only see a fleet's status. It is derived from the fleet's token and does not
    reveal it.
    """
    return _STATUS + hmac.new(token.encode(), b"wallaroo: status", "sha256").hexdigest()


def tap_token(token: str) -> str:
    """The token for callers that may see a fleet's status and samples of its messages, and may do nothing else.

    It is derived from the fleet's token and does not reveal it.
    """
    return f"{_TAP}{hmac.new(token.encode(), b'wallaroo: tap', 'sha256').hexdigest()}.{status_token(token)}"


def private_folder() -> Path:
    """A folder for sockets and locks that only this user can open. Raises OSError where there can be no such folder."""
    folder = Path(tempfile.gettempdir(), f"wallaroo-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise OSError(
            f"the folder {folder} belongs to another user, or others may open it; remove it, or set TMPDIR to another "
            "folder"
        )
    return folder


def local_socket(address: str, token: str) -> Path | None:
    """The path of the local socket of the worker with this inner address; None where there can be no such socket.

    Only the worker's user can open the folder. The name of the socket reveals neither address nor token, and is
    different for each worker.
    """
    try:
        folder = private_folder()
    except OSError:
        return None
    path = folder / hmac.new(_known(token), address.encode(), "sha256").hexdigest()[:24]
    return path if len(os.fsencode(path)) <= _LONGEST_PATH else None


def _known(token: str) -> bytes:
    """The secret that holders of the fleet's token and holders of the status token share."""
    if tap := _TAP_TOKEN.fullmatch(token):
        return tap[1].encode()
    return (token if token.startswith(_STATUS) else status_token(token)).encode()


@functools.lru_cache(maxsize=8)
def fleet_keys(token: str) -> FleetKeys:
    """The keys of the fleet with this token; ``token`` may also be its status token."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = hashlib.scrypt(_known(token), salt=_SALT, n=_COST, r=_BLOCK, p=_LANES, dklen=48)
    authority_key = ec.derive_private_key(int.from_bytes(secret) % (_ORDER - 1) + 1, ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    fleet = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "wallaroo-spark fleet")])
    worker = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, more: list[x509.ExtensionType]) -> bytes:
        builder = x509.CertificateBuilder(fleet, subject, public, x509.random_serial_number(), _FROM, _UNTIL)
        for extension in more:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    names = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    return FleetKeys(
        signed(fleet, authority_key.public_key(), [x509.BasicConstraints(ca=True, path_length=0)]),
        signed(worker, key.public_key(), [x509.BasicConstraints(ca=False, path_length=None), names]),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


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

    def plan(self, question: calls.PlanQuestion) -> calls.PlanAnswer:
        """Ask how far a batch may go on this worker."""
        return calls.PlanAnswer.decode(self._call("plan", question.encode()))

    def held(self) -> dict[StreamKey, Reference | None]:
        """The streams of which the worker holds rows, with the committed references that the worker knows."""
        return calls.decode_starts(self._call("held", b""))

    def owes(self, start: calls.Starts) -> bool:
        """Whether a connector waits for an ACK of messages up to ``start``, all of which Spark has committed."""
        return bool(json.loads(self._call("owes", calls.encode_starts(start)))["owes"])

    def followed(self, cursor: int, wait: float, everything: bool = False) -> calls.FollowedScopes:
        """Wait up to ``wait`` seconds until the worker follows scopes with a number above ``cursor``, and return them.

        With ``everything`` the answer comes at once and has the other scopes that it follows, too.
        """
        body = json.dumps({"cursor": cursor, "wait": wait, "everything": everything}).encode()
        return calls.FollowedScopes.decode(self._call("followed", body, self._timeout + wait))

    def tell(self, notice: calls.Notice) -> None:
        """Send a notice."""
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

    def sample(self, question: calls.SampleQuestion) -> calls.MessageSample:
        """Copies of some messages that the worker holds; the tap token suffices."""
        return calls.MessageSample.decode(self._call("sample", question.encode(), self._timeout + question.wait))

    def traced(self, after: int) -> list[dict[str, Any]]:
        """The messages that were followed to their acknowledgement, with a serial number greater than ``after``."""
        messages: list[dict[str, Any]] = self._act("traced", {"after": after})["messages"]
        return messages

    def unreadable(self, batches: int, instance: str, reason: str) -> None:
        """Tell of record batches that a task could not read: their number, and client and reason of the last."""
        self._act("unreadable", {"batches": batches, "instance": instance, "reason": reason})

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
