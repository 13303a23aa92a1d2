"""Writes the events of one gateway to its inbox, in files that are durable before anybody is answered."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.task_access import as_arrow_stream
from wallaroo_spark.steps import InboxStep, passed
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.inbox import names
from wallaroo_spark.streams.inbox.names import InboxFile, InboxPosition
from wallaroo_spark.streams.places import INBOX
from wallaroo_spark.streams.rows import INPUT, Rank, batch_of

_CLAIMS = 12
"""The most claims of one :meth:`InboxWriter.open`. Several processes of one gateway are rare, and the pauses
between the claims are random and grow."""
_PAUSE_SECONDS = 0.02
"""The longest pause after the first claim that another process disputed; it doubles with each."""
_again = Retrying(
    stop=stop_after_attempt(3), wait=wait_fixed(0.1), retry=retry_if_exception_type(CheckpointError), reraise=True
)
"""A file is written again under its own name with its own content, so a second writing changes nothing."""


class InboxWriter:
    """The writer of one generation of a gateway in the application at ``location``. Its calls block; one thread at a
    time.

    ``gateway`` is the gateway's name; the driver's own is ``driver``. ``spark`` is a Spark session of this process, if
    it has one. :meth:`open` begins a generation, and each later call of it a newer one. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written.
    """

    def __init__(self, location: Location, gateway: str, spark: Any = None) -> None:
        self._location, self._spark, self._gateway = location, spark, names.checked_gateway(gateway)
        self._own = SidecarFolder(location, INBOX, gateway, spark=spark)
        self.generation = 0
        """The generation that :meth:`open` began; 0 before."""
        self._claim = ""
        self._files: SidecarFolder | None = None
        self._sequence = 0

    def __repr__(self) -> str:
        return f"InboxWriter({self._own.identity!r}, generation={self.generation})"

    def open(self, read: InboxPosition | None = None) -> int:
        """Begin the next generation, which no other process has; return its number, from 1.

        From now on no events of earlier generations are read, except those that are there already. ``read`` is how far
        the application's checkpoint has read this inbox. Raises :class:`CheckpointError` when the inbox lacks that
        generation, and when other processes dispute each generation that this call tries.
        """
        self._files = None
        for attempt in range(_CLAIMS):
            listed = self._own.names()
            newest = max(names.claimed(listed).values(), default=0)
            if read is not None and newest < read.generation:
                raise names.lost_generation(self._gateway, read, newest, self._own.identity)
            generation = max((*names.claimed(listed).values(), *names.generation_folders(listed)), default=0) + 1
            claim = names.claim_name(generation, uuid.uuid4().hex[:8])
            self._own.write(claim, b"")
            passed(InboxStep.GENERATION_CLAIMED)
            # Of several claims of one generation, the one that is written last sees the others, on every file system. A
            # claim that sees another one of its generation is given up, so at most one of them is taken.
            others = {name: number for name, number in names.claimed(self._own.names()).items() if name != claim}
            if max(others.values(), default=0) < generation:
                self.generation, self._sequence, self._claim = generation, 0, claim
                name = names.generation_name(generation)
                self._files = SidecarFolder(self._location, INBOX, self._gateway, name, spark=self._spark)
                return generation
            time.sleep(random.uniform(0, _PAUSE_SECONDS * 2**attempt))
        raise CheckpointError(
            f"{self._own.identity}: {_CLAIMS} times in a row another process claimed the same generation of gateway "
            f"{self._gateway}; give each process the name of a gateway of its own",
            code="inbox-disputed",
            gateway=self._gateway,
        )

    def write(self, events: Sequence[tuple[PartitionKey, bytes]]) -> int:
        """Write events as one file; return its number within the generation, from 1. It is durable then.

        ``events`` has the key of each event and its encoding by the controller's format; a batch has all of them or
        none. When this returns, the file is read by a batch, also if another process opens a newer generation now.
        When it raises, it is not known whether the file is read, and only :meth:`open` makes the writer usable again.
        Raises :class:`CheckpointError` when the file cannot be written or a newer generation has begun, and
        :class:`ConfigurationError` without events or before :meth:`open`.
        """
        files = self._files
        if files is None or not events:
            raise ConfigurationError(
                f"gateway {self._gateway}: "
                + ("there is no event to write" if files is not None else "the inbox is not open; call open() first"),
                code="inbox-misused",
                gateway=self._gateway,
            )
        file = InboxFile(self._sequence + 1, len(events), sum(len(event) for _, event in events))
        data = as_arrow_stream(received_rows(names.origin_of(self._gateway, self.generation), file.sequence, events))
        self._files = None
        _again(files.write, file.name, data)
        passed(InboxStep.EVENTS_WRITTEN)
        self._check_newest()
        self._files, self._sequence = files, file.sequence
        return file.sequence

    def superseded(self) -> bool:
        """Whether a newer generation of this gateway has begun, so that nothing more of this one is read.

        Raises :class:`CheckpointError` when the claim of this generation is gone although there is no newer one: the
        folder was deleted, or replaced by an older copy.
        """
        claims = names.claimed(self._own.names())
        newest = max(claims.values(), default=0)
        if newest <= self.generation and self._claim and self._claim not in claims:
            raise names.lost_generation(
                self._gateway, InboxPosition(self.generation, self._sequence), newest, self._own.identity
            )
        return newest > self.generation

    def _check_newest(self) -> None:
        """Raise an error if a newer generation has begun, or the claim of this one is gone.

        The source lists the claims before the files. So when there is no newer claim after the file was written, the
        source finds the file before it turns to a newer generation.
        """
        if self.superseded():
            raise CheckpointError(
                f"gateway {self._gateway}: another process has begun a newer generation than {self.generation}, and "
                "events of this one may not be read; end this process, or call open() again",
                code="inbox-superseded",
                gateway=self._gateway,
                generation=self.generation,
            )


def received_rows(
    origin: str, sequence: int, events: Sequence[tuple[PartitionKey, bytes]], first: int = 0
) -> pa.RecordBatch:
    """Encoded events as rows of INPUT; their places begin at ``first``."""
    return batch_of(
        INPUT,
        len(events),
        stream=[key.stream for key, _ in events],
        partition=[key.partition for key, _ in events],
        rank=int(Rank.RECEIVED),
        origin=origin,
        sequence=sequence,
        place=list(range(first, first + len(events))),
        event=[event for _, event in events],
    )
