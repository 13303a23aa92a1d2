"""Reading of planned ranges in an executor, from the workers that have them. It waits while messages are sent again.

Source: ``docs/architecture.md#workers-keep-uncommitted-rows``.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from wallaroo_spark.doors.kafka.rows import expand
from wallaroo_spark.doors.otlp.rows import named_by_service
from wallaroo_spark.errors import ReplayError, TransportError, one_line
from wallaroo_spark.inner.client import SILENCE_SECONDS, Trust, WorkerClient
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange
from wallaroo_spark.registry import FleetDiscovery, Registry
from wallaroo_spark.source.fleet_view import KEPT
from wallaroo_spark.steps import Step, passed

log = one_line(logging.getLogger("wallaroo_spark.source"))

PATIENCE_SECONDS = 0.5
"""How long a read waits for one worker before it asks the others again. A choice."""
REFRESH_SECONDS = 1.0
"""Shortest time between two looks at the registry. A choice."""
LEAST_SILENCE_SECONDS = 5.0
"""A worker may take this long for its next answer, even when ``replayTimeout`` is shorter. A choice."""
SHUN_SECONDS = 10.0
"""How long a worker that stopped answering is not asked while there are other workers. A choice."""
_SHOWN = 5
"""Most ranges that an error text names."""


@dataclass
class RangePartition(InputPartition):
    """The ranges that one task reads, and everything that it needs to read them. Spark sends this to an executor."""

    slot: int
    """The slot whose worker is asked first."""
    ranges: list[PlannedRange]
    """The ranges to read, one for each stream."""
    addresses: dict[int, str]
    """Addresses of the workers' inner ports by slot, as the driver knew them when it planned the batch."""
    options: Options
    """The options of the receiver. ``registry`` and ``token`` are resolved, as an executor may have neither the
    environment nor the files in which secrets are kept."""
    trust: Trust | None = None
    """How the task verifies the workers' TLS certificates; None when they use no TLS."""
    query: str = ""
    """Id of the query that the batch belongs to; empty while the driver does not know it."""
    leaving: tuple[str, int] = ("", 0)
    """The token of the streams that are leaving in the batch's plan, empty when there are none; and when the plan was
    made behind which the batch starts, by the plans' clock, 0 where plans have no time."""

    def __post_init__(self) -> None:
        super().__init__(self.slot)


class Workers:
    """The workers that a task may ask. They are looked up again when a worker does not answer or lacks the ranges."""

    def __init__(self, partition: RangePartition, registry: Callable[[], Registry]) -> None:
        self._partition = partition
        # Most tasks need no registry, so it is opened when it is first asked.
        self._registry = functools.cache(registry)
        self._discovery = FleetDiscovery(lambda: self._registry().leases(), "a reading task")
        self._clients: dict[str, WorkerClient] = {}
        self._failed: set[str] = set()
        self._silent: dict[str, float] = {}
        self._refreshed = time.monotonic()

    def in_turn(self) -> list[str]:
        """The addresses in the order in which to ask, the likeliest worker's first.

        Workers that fell silent within the last ``SHUN_SECONDS`` are left out, unless all of them did.
        """
        known = self._partition.addresses | self._discovery.addresses()
        addresses = [known[slot] for slot in sorted(known, key=lambda slot: (slot != self._partition.slot, slot))]
        lately = time.monotonic() - SHUN_SECONDS
        return [address for address in addresses if self._silent.get(address, lately) <= lately] or addresses

    def fell_silent(self, address: str) -> None:
        """Ask only the other workers for some time, because each attempt here may take as long as this silence."""
        self._silent[address] = time.monotonic()

    def failed(self, address: str) -> None:
        """Record that a call to this worker ended with an error: no later task uses the connection."""
        self._failed.add(address)

    def client(self, address: str) -> WorkerClient:
        """The client of the worker at an address; the first call for an address makes it."""
        if address not in self._clients:
            self._clients[address] = KEPT.take(address, self._partition.options.token, self._partition.trust)
        return self._clients[address]

    def refresh(self) -> None:
        """Ask the registry where the workers are now, at most once a second. Known addresses stay while it is away."""
        if time.monotonic() - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = time.monotonic()
            self._discovery.look()

    def keep(self) -> None:
        """Leave the connections to the next task of this process, because all reads have ended."""
        for address in self._clients.keys() - self._failed:
            KEPT.keep(self._clients.pop(address), self._partition.options.token, self._partition.trust)

    def close(self) -> None:
        """Close the connections that were not kept."""
        for client in self._clients.values():
            client.close()


def read_ranges(partition: RangePartition, registry: Callable[[], Registry]) -> Iterator[pa.RecordBatch]:
    """The partition's rows. If a worker dies during the read, the rest is read from the worker that receives it then.

    Raises :class:`ReplayError` when there was no progress for ``replay_timeout`` seconds. If data loss is allowed, the
    missing ranges are logged and left out instead.
    """
    missing = dict(enumerate(partition.ranges))
    workers = Workers(partition, registry)
    until = time.monotonic() + partition.options.replay_timeout
    try:
        while missing:
            before = dict(missing)
            turn = workers.in_turn()
            for number, address in enumerate(turn):
                if missing:
                    wait = PATIENCE_SECONDS if number == 0 else 0.0
                    silence = min(SILENCE_SECONDS, max(LEAST_SILENCE_SECONDS, until - time.monotonic()))
                    try:
                        yield from _read_from(workers.client(address), missing, partition, wait, silence)
                    except TransportError as error:
                        log.warning("%s; the remaining rows are read from other workers", error)
                        workers.failed(address)
                        if error.fields.get("reason") == "timeout":
                            workers.fell_silent(address)
                        else:
                            time.sleep(min(PATIENCE_SECONDS, partition.options.replay_timeout))
            if missing != before:
                until = time.monotonic() + partition.options.replay_timeout
            elif time.monotonic() > until:
                _give_up(partition, list(missing.values()))
                return
            if missing:
                if not turn:
                    time.sleep(PATIENCE_SECONDS)
                workers.refresh()
        workers.keep()
    finally:
        workers.close()


def _read_from(
    client: WorkerClient, missing: dict[int, PlannedRange], partition: RangePartition, wait: float, silence: float
) -> Iterator[pa.RecordBatch]:
    """The rows of the missing ranges that one worker has; ``missing`` is updated as rows are returned."""
    indexes = list(missing)
    unreadable: list[tuple[str, str]] = []
    asked = [missing[index] for index in indexes]
    boundaries, leaving = partition.options.include_boundaries, partition.leaving
    for batch, marks in client.read(asked, boundaries=boundaries, wait=wait, silence=silence, leaving=leaving):
        for number, reference, done in marks:
            index = indexes[number]
            if done:
                missing.pop(index, None)
            elif reference is not None:
                key, _, end = missing[index]
                missing[index] = PlannedRange(key, reference, end)
        if batch.num_rows:
            yield from expand(
                named_by_service(batch),
                headers=partition.options.include_headers,
                corrupt=partition.options.include_corrupt,
                unreadable=lambda *one: unreadable.append(one),
            )
            if unreadable:
                _tell_unreadable(client, unreadable)
        if missing:
            passed(Step.RANGE_HALF_READ)


def _tell_unreadable(client: WorkerClient, unreadable: list[tuple[str, str]]) -> None:
    """Tell the worker of record batches that were left out, so that people see them. A failure of that is logged."""
    try:
        client.unreadable(len(unreadable), *unreadable[-1])
    except TransportError as error:
        log.warning("the worker is not told of %d record batches that were left out: %s", len(unreadable), error)
    unreadable.clear()


def _give_up(partition: RangePartition, missing: list[PlannedRange]) -> None:
    shown = ", ".join(str(one) for one in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    message = (
        f"planned messages of {shown}{more} were not sent again within {partition.options.replay_timeout:g} seconds "
        f"(replayTimeout); start the connectors that own them, or set failOnDataLoss=false to go on without them"
    )
    if partition.options.fail_on_data_loss:
        raise ReplayError(message, code="resend-missing", ranges=missing, receiver=partition.options.receiver)
    log.error("%s: the batch goes on without them, because failOnDataLoss is false", message)
