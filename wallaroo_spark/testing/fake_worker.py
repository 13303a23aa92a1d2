"""A worker for tests of connectors: the package's own worker on a real port, with the test in place of Spark and Redis.

A connector therefore receives the same frames as from a worker in production: credits, references, and errors with
their reasons. The test controls the worker's environment: when a batch is read and committed, when the network fails,
when the worker dies. :class:`DriverByHand` is its driver: the receiver's own sender of notices, and the commits that a
test makes. :class:`OneSlot` is its registry, of one slot in memory. :func:`rows` makes rows of a receiver's stream from
the messages of a producer, without a worker or a socket.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Self, TypeVar
from unittest import mock

import pyarrow as pa

from wallaroo_spark.columnar import ROW_SCHEMA, CommonColumns, decode_run, to_rows
from wallaroo_spark.connector import stream_id_of
from wallaroo_spark.connector.arguments import event_time_of
from wallaroo_spark.errors import ConfigurationError, LeaseLostError, RegistryError, TransportError
from wallaroo_spark.event_loop import beside
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.inner.notices import Followers, GivenUp, LastCommit, NoticeSender
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import DRAFT_BE, FrameBuffer, Message, MessageRun, encode_single
from wallaroo_spark.references import (
    Changes,
    PlannedRange,
    Reference,
    References,
    flatten,
    merge,
    nest,
    plain,
    ranges,
    without_forgotten,
)
from wallaroo_spark.registry import Assignment, Lease
from wallaroo_spark.transport import parse_address
from wallaroo_spark.wiretap.proxy import Proxy
from wallaroo_spark.worker.run import WorkerThread
from wallaroo_spark.worker.service import WorkerSetup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


ANSWER_SECONDS = 30.0
"""The longest wait for the worker to take a notice, in seconds. A choice, generous for loaded machines."""


class DriverByHand:
    """Tells one worker the position of a query, and answers its questions; ``client`` is closed at its end.

    ``given_up`` is the record of what doors have given up; without it they give nothing up. Its methods raise
    :class:`TransportError` when the worker does not answer.
    """

    def __init__(self, client: WorkerClient, given_up: GivenUp | None = None) -> None:
        self._changed = threading.Condition()
        self._commit: LastCommit | None = None
        self._sender = NoticeSender(0, client, self._changed, lambda: self._commit, Followers(), lambda: given_up)
        threading.Thread(target=self._sender.run, name="driver-by-hand", daemon=True).start()

    def rewind(self, epoch: int, batch: int, references: References) -> None:
        """A query continues from exactly these references; the worker knows it afterwards."""
        self._tell(LastCommit(epoch, batch, merge(references, {})), anew=True)

    def committed(self, epoch: int, batch: int, changes: Changes) -> None:
        """Spark has committed a batch; the worker knows it afterwards. None in ``changes`` is a forgotten stream."""
        known = plain(self._commit.references) if self._commit is not None else {}
        self._tell(LastCommit(epoch, batch, without_forgotten(merge(known, changes))), anew=False)

    def _tell(self, commit: LastCommit, *, anew: bool) -> None:
        sender = self._sender
        with self._changed:
            self._commit = commit
            sender.failure = None
            sender.sent = None if anew else sender.sent
            self._changed.notify_all()
            self._changed.wait_for(lambda: sender.sent is commit or sender.failure is not None, ANSWER_SECONDS)
            failure, told = sender.failure, sender.sent is commit
        if failure is not None:
            raise failure
        if not told:
            raise TransportError(f"the worker takes no notice within {ANSWER_SECONDS:g} s", code="test-timed-out")

    def stop(self) -> None:
        """Send no more notices. Its threads end with the call that is under way."""
        self._sender.stop()


T = TypeVar("T")


class OneSlot:
    """The registry of slot 0; any thread may call it.

    While ``away`` is set, every call fails as it does when Redis is unreachable. ``elsewhere`` is the address of
    another worker to which connectors are redirected; empty for none.
    """

    def __init__(self) -> None:
        self.away = False
        self.elsewhere = ""
        self._generation = 0
        self._lease: Lease | None = None
        self._changed = threading.Condition()

    def await_served(self, submission: int, seconds: float) -> Lease | None:
        """Wait until the worker of this submission serves the slot. Returns its lease, or None after ``seconds``."""

        def served() -> Lease | None:
            lease = self._lease
            return lease if lease is not None and lease.submission == submission and lease.flight else None

        with self._changed:
            return self._changed.wait_for(served, seconds)

    def acquire(self, slot: int, submission: int, holder: str, connect: str, flight: str) -> Lease:
        """The slot's lease, for the newest submission. Raises :class:`LeaseLostError` for an older one."""
        self._answer()
        with self._changed:
            held = self._held(slot, submission)
            if held is None or held.submission != submission:
                self._generation += 1
            self._lease = Lease(slot, submission, self._generation, holder, connect, flight)
            self._changed.notify_all()
            return self._lease

    def renew(self, lease: Any, *, instances: Any = (), claims: Any = (), everything: bool = False) -> bool:
        """Renew the lease. Raises :class:`LeaseLostError` when a newer submission has it."""
        self._answer()
        self._held(lease.slot, lease.submission)
        return True

    def release(self, lease: Any) -> None:
        """Release the lease, unless a newer one exists."""
        with self._changed:
            if self._lease is not None and self._lease.submission == lease.submission:
                self._lease = None
                self._changed.notify_all()

    def leases(self) -> dict[int, Lease]:
        """The live leases, by slot."""
        self._answer()
        return {} if self._lease is None else {self._lease.slot: self._lease}

    def assign(self, instance: str, knocked: int, workers: int) -> Assignment:
        """Assign the instance to the slot that the connector connected to, or to another one at ``elsewhere``."""
        self._answer()
        return Assignment(knocked + 1, self.elsewhere) if self.elsewhere else Assignment(knocked, None)

    def unassign(self, lease: Any, instances: Any) -> None:
        """Remove assignments; does nothing here."""
        self._answer()

    def claim(self, lease: Any, streams: Iterable[int]) -> set[int]:
        """Claim all requested stream ids, because there is no other slot."""
        self._answer()
        return set(streams)

    def unclaim(self, lease: Any, streams: Any) -> None:
        """Release claims of stream ids; does nothing here."""
        self._answer()

    def _held(self, slot: int, submission: int) -> Lease | None:
        """The lease, if there is one. Raises :class:`LeaseLostError` when a newer submission has it."""
        held = self._lease
        if held is not None and held.submission > submission:
            raise LeaseLostError(
                f"slot {slot} is held by submission {held.submission}, which is newer", code="lease-lost"
            )
        return held

    def _answer(self) -> None:
        if self.away:
            raise RegistryError("the test makes the registry unreachable", code="registry-away")


START_SECONDS = 30.0
"""Limit in seconds of the wait until the worker serves. A choice, generous for loaded machines."""
WAIT_SECONDS = 30.0
"""Default limit in seconds of a test's wait for messages. A choice, generous for loaded machines."""
_LOOK_SECONDS = 0.5
"""Limit in seconds of one call that waits for new messages; the wait consists of many. A choice."""


class FakeWorker:
    """One worker at one address for the duration of the ``with`` block. Any thread may call its methods.

    ``options`` are those of the options page in snake_case, for example ``cookie="secret"``, ``version="0.0.1"`` or
    ``memory_budget=1 << 20``, from which credits are granted. With ``ready=False`` the query has not started: a HELLO
    is not answered before :meth:`begin`. Raises :class:`ConfigurationError` for options that the fake worker sets
    itself.

    ``network`` is the proxy in front of the worker, which cuts, stalls and slows down connections.
    """

    def __init__(self, *, ready: bool = True, **options: Any) -> None:
        refused = {"registry", "workers", "port", "advertise"} & options.keys()
        if refused:
            raise ConfigurationError(
                f"FakeWorker sets {', '.join(sorted(refused))} itself; leave it out", code="options-conflict"
            )
        self._options: dict[str, Any] = {"receiver": "fake", "host": "127.0.0.1", "workers": 1, **options}
        self._ready = ready
        self._token = secrets.token_urlsafe(16)
        self._registry = OneSlot()
        self._submission = 0
        self._worker = ExitStack()
        self._client: WorkerClient | None = None
        self._driver: DriverByHand | None = None
        self._epoch = 0
        self._offsets: list[dict[str, dict[str, Reference]]] = [{}]
        self._planned: list[PlannedRange] = []
        self._batches: list[pa.Table] = []
        self._query = threading.RLock()
        self.network = Proxy(("127.0.0.1", 0))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start to serve, as the ``with`` statement does; for tests that cannot use one."""
        self.network.__enter__()
        try:
            self._start_worker()
            if self._ready:
                self.begin()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the worker and end all connections."""
        try:
            self._stop_worker()
        finally:
            self.network.__exit__()

    @property
    def address(self) -> str:
        """The address for connectors, ``host:port``. It stays the same after :meth:`crash` and :meth:`restart`."""
        return self.network.address

    @property
    def committed(self) -> pa.Table:
        """The rows of all committed batches, in order, with the columns of a receiver's stream."""
        with self._query:
            return pa.concat_tables([ROW_SCHEMA.empty_table(), *self._batches])

    def status(self) -> dict[str, Any]:
        """The worker's own status: its sessions, instances, streams, bytes and counts."""
        return _started(self._client).status()

    # The test takes the place of the query.

    def begin(self) -> None:
        """Start the query, or start it again on the same checkpoint. Waiting connectors are answered."""
        with self._query:
            self._epoch += 1
            _started(self._driver).rewind(self._epoch, len(self._batches) - 1, self._offsets[-1])

    def read(self, at_least: int = 1, seconds: float = WAIT_SECONDS) -> pa.Table:
        """Read the next batch: all messages of the worker, as soon as there are ``at_least`` of them.

        Until the batch is committed, each call reads the same batch, as Spark runs a batch again. After :meth:`crash`
        it is filled from the messages that connectors resend. Reading acknowledges nothing. Raises
        :class:`TransportError` when the messages do not arrive within ``seconds``.
        """
        with self._query:
            if not self._planned:
                self._plan(at_least, seconds)
            return self._read(seconds)

    def commit(self, at_least: int = 1, seconds: float = WAIT_SECONDS) -> pa.Table:
        """Commit the batch of the last :meth:`read`, or read one first; connectors receive ACKs. Returns its rows."""
        with self._query:
            table = self.read(at_least, seconds)
            reached = nest({planned.key: planned.end for planned in self._planned})
            _started(self._driver).committed(self._epoch, len(self._batches), reached)
            self._offsets.append(merge(self._offsets[-1], reached))
            self._batches.append(table)
            self._planned = []
            return table

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Within the block, commit all messages soon after they arrive.

        An error of a commit is raised at the end of the block.
        """
        stop = threading.Event()
        failed: list[Exception] = []

        def run() -> None:
            while not stop.is_set():
                try:
                    if self._rows_to_come():
                        self.commit()
                    else:
                        stop.wait(0.02)
                except Exception as error:
                    failed.append(error)
                    return

        with beside(run, "fake-query", stop.set, 2 * WAIT_SECONDS):
            yield
        if failed:
            raise failed[0]

    def go_back(self, batches: int = 1) -> None:
        """Start the query again on a checkpoint that is ``batches`` batches older; connectors must resend those.

        ``committed`` no longer has the rows of these batches.
        """
        with self._query:
            keep = max(0, len(self._batches) - batches)
            self._offsets, self._batches, self._planned = self._offsets[: keep + 1], self._batches[:keep], []
            self.begin()

    # Failures of the worker and its environment.

    def crash(self) -> None:
        """The worker dies with all messages that are not committed, and another one serves the same address."""
        self.network.refuse()
        self.restart()
        self.network.accept()

    def restart(self) -> None:
        """The worker shuts down in order and asks connectors to reconnect; another one serves the same address."""
        self._stop_worker()
        self._start_worker()
        self.begin()

    def registry_away(self) -> AbstractContextManager[object]:
        """Within the block the registry does not answer the worker; a HELLO is answered with try again later."""
        return mock.patch.object(self._registry, "away", True)

    def redirecting(self, address: str) -> AbstractContextManager[object]:
        """Within the block a HELLO is redirected to another worker at ``address`` (``host:port``)."""
        return mock.patch.object(self._registry, "elsewhere", address)

    # Starting and stopping the worker.

    def _start_worker(self) -> None:
        options = Options(**self._options)
        self._submission += 1
        self._worker.enter_context(WorkerThread(WorkerSetup(options, 0, self._submission, self._token), self._registry))
        lease = self._registry.await_served(self._submission, START_SECONDS)
        if lease is None:
            raise TransportError(
                f"the fake worker does not serve after {START_SECONDS:g} s; see its log for the cause",
                code="test-timed-out",
            )
        self._client = WorkerClient(lease.flight, self._token, trust=Trust.of(options))
        self._worker.callback(self._client.close)
        self._driver = DriverByHand(WorkerClient(lease.flight, self._token, trust=Trust.of(options)))
        self._worker.callback(self._driver.stop)
        self.network.lead_to(parse_address(lease.connect))

    def _stop_worker(self) -> None:
        self._client = self._driver = None
        self._worker.close()

    def _rows_to_come(self) -> int:
        with self._query:
            return (
                _started(self._client).plan(PlanQuestion(flatten(self._offsets[-1]))).rows if not self._planned else 1
            )

    def _plan(self, at_least: int, seconds: float) -> None:
        client, start = _started(self._client), self._offsets[-1]
        deadline = time.monotonic() + seconds
        version = -1
        while (plan := client.plan(PlanQuestion(flatten(start)))).rows < at_least:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TransportError(
                    f"the fake worker has {plan.rows} messages after {seconds:g} s, and the test needs {at_least}; "
                    f"its sessions are of {self.status()['connected']}",
                    code="test-timed-out",
                )
            version = client.available(version, min(left, _LOOK_SECONDS))["version"]
        self._planned = ranges(start, merge(start, plan.ends))

    def _read(self, seconds: float) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        done: set[int] = set()
        for batch, marks in _started(self._client).read(self._planned, boundaries=True, wait=seconds):
            batches.append(batch)
            done.update(index for index, _, final in marks if final)
        missing = [self._planned[index] for index in range(len(self._planned)) if index not in done]
        if missing:
            shown = "; ".join(map(str, missing))
            raise TransportError(
                f"messages that were read before were not resent within {seconds:g} s: {shown}", code="test-timed-out"
            )
        return pa.Table.from_batches(batches, schema=ROW_SCHEMA)


def _started(part: T | None) -> T:
    """A part of a worker that serves. Raises :class:`ConfigurationError` before it is started."""
    if part is None:
        raise ConfigurationError(
            "the fake worker is not started; use it in a with statement", code="receiver-not-started"
        )
    return part


LONGEST_FRAME = 1 << 30
"""Limit in bytes of a frame. Larger than any test needs, because a test has no untrusted peer."""


def rows_schema() -> StructType:
    """The schema of a receiver's stream, for ``createDataFrame`` and for comparing schemas."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(ROW_SCHEMA)


def rows(
    spark: SparkSession,
    payloads: Iterable[bytes | str],
    ids: Iterable[int] | None = None,
    event_times: Iterable[int | datetime | None] | None = None,
    keys: Iterable[bytes | None] | None = None,
    *,
    instance: str = "shop-1",
    stream: str = "orders",
    stream_id: int | None = None,
    received_at: datetime | None = None,
) -> DataFrame:
    """A DataFrame with the rows that these messages become, in order. The arguments are those of ``send_many``.

    Text is encoded as UTF-8. ``ids`` count from 1 unless given. Event times are nanoseconds since 1970 UTC or aware
    datetimes. ``stream_id`` defaults to the id that a connector derives from instance and stream, ``received_at`` to
    the current time. The messages are encoded and decoded by the code of connectors and workers.

    Raises :class:`ConfigurationError` when the numbers of ids, event times or keys differ from the number of payloads.
    """
    given = [payload.encode() if isinstance(payload, str) else payload for payload in payloads]
    columns = zip(
        given,
        count(1) if ids is None else _one_for_each(given, "ids", ids),
        repeat(None) if event_times is None else _one_for_each(given, "event times", event_times),
        repeat(None) if keys is None else _one_for_each(given, "keys", keys),
        strict=False,
    )
    number = stream_id_of(instance, stream) if stream_id is None else stream_id
    frames = b"".join(
        encode_single(DRAFT_BE, number, message_id, payload, 0, event_time_of(event_time), key).data
        for payload, message_id, event_time, key in columns
    )
    moment = time.time_ns() if received_at is None else event_time_of(received_at)
    assert moment is not None
    batches = list(_decoded(frames, (stream, number), (instance, moment // 1000)))
    return spark.createDataFrame(pa.Table.from_batches(batches, schema=ROW_SCHEMA))


def _one_for_each(payloads: list[bytes], name: str, values: Iterable[T]) -> list[T]:
    found = list(values)
    if len(found) != len(payloads):
        raise ConfigurationError(
            f"rows: there are {len(payloads)} payloads and {len(found)} {name}; give one for each",
            code="columns-uneven",
        )
    return found


def _decoded(frames: bytes, stream: tuple[str, int], receipt: tuple[str, int]) -> Iterator[pa.RecordBatch]:
    """The rows of MESSAGE frames of one stream, decoded as by a worker."""
    buffer = FrameBuffer(LONGEST_FRAME)
    buffer.feed(frames)
    while (run := buffer.next(DRAFT_BE, DRAFT_BE.by_frame[Message].tag)) is not None:
        assert isinstance(run, MessageRun)
        decoded = decode_run(run, event_time_unit="ns")
        if decoded.error is not None:
            raise decoded.error
        common = CommonColumns.one(stream, receipt, decoded.count)
        yield to_rows(decoded.columns(), common, include_boundaries=True)
