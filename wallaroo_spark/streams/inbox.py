"""The inbox of an application: files of events that gateways and the driver write, and that the source reads.

    <folder>/_wallaroo/inbox/<gateway>/<generation>-<random>.claim              a gateway began this generation
                                       <generation>/<sequence>-<rows>.arrow     events, an Arrow IPC stream of INPUT

A transactional sink has a folder as a gateway has; each of its generations is a batch, whose claim is written last.

Source: ``docs/pipelines/engine.md#the-inbox``.
"""

from __future__ import annotations

import bisect
import random
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.sidecar.batch_log import FolderListing
from wallaroo_spark.sidecar.folder import SidecarFolder, three_times
from wallaroo_spark.sidecar.task_access import as_arrow_stream
from wallaroo_spark.steps import InboxStep, passed
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.places import INBOX
from wallaroo_spark.streams.rows import INPUT, Rank, batch_of

DRIVER = "driver"
"""The name under which the driver writes events of its own; nobody reads the answers to them."""
SINK = "sink-"
"""Prefix of the names under which transactional sinks write events; a generation of such a name is one batch."""
_CLAIM = re.compile(r"([0-9]{20})-[0-9a-f]{8}\.claim")
_GENERATION = re.compile(r"[0-9]{20}")
_FILE = re.compile(r"([0-9]{20})-([1-9][0-9]*)-([0-9]+)\.arrow")
_GATEWAY = re.compile(r"[A-Za-z0-9_-]{1,100}")
_WRITER = re.compile(rf"{_GATEWAY.pattern}|{SINK}[A-Za-z0-9._-]{{1,64}}")


class InboxPosition(NamedTuple):
    """How far the inbox of one gateway is read."""

    generation: int = 0
    """The generation; 0 before the first one."""
    sequence: int = 0
    """The last file of that generation that is read; 0 for none."""


class InboxFile(NamedTuple):
    """A file of events."""

    sequence: int
    """Its number within its generation, from 1 without holes."""
    rows: int
    """Number of events."""
    bytes: int = 0
    """Bytes of its encoded events."""

    @property
    def name(self) -> str:
        """Its name in the folder of its generation."""
        return f"{self.sequence:020d}-{self.rows}-{self.bytes}.arrow"


def positions_of(inbox: Any) -> dict[str, InboxPosition]:
    """The positions in an offset of the source: the value of its key ``inbox``. Raises KeyError, TypeError, ValueError
    or AttributeError for anything else."""
    return {str(gateway): InboxPosition(int(at["generation"]), int(at["sequence"])) for gateway, at in inbox.items()}


def positions_in(offsets: Sequence[Any]) -> dict[str, InboxPosition]:
    """The positions in the offsets of an application's batch; none without a batch. Raises as :func:`positions_of`."""
    return positions_of(offsets[0]["inbox"]) if offsets else {}


def lost_generation(gateway: str, at: InboxPosition, newest: int, where: str) -> CheckpointError:
    """The error for an inbox whose newest claim is older than the position of the checkpoint.

    This package never deletes the claim of a position's generation; without it a gateway would begin a generation that
    is read already. ``newest`` is the generation of the newest claim, 0 without one; ``where`` is the gateway's folder.
    """
    there = f"its newest claim is of generation {newest}" if newest else "it has no claim"
    return CheckpointError(
        f"the inbox of gateway {gateway} was deleted or is an older copy: {there}, and the checkpoint has read "
        f"generation {at.generation}, so what the gateway receives would never be read; restore the whole folder of "
        "the application as it was at one time; or, to go on without the events that were received and not read, "
        f"create the empty file {where}/{claim_name(at.generation, '0' * 8)}",
        code="inbox-lost",
        gateway=gateway,
        generation=at.generation,
        newest=newest,
    )


def is_writer(name: str) -> bool:
    """Whether a name in the inbox can be that of a gateway or a sink."""
    return _WRITER.fullmatch(name) is not None


def checked_gateway(name: str) -> str:
    """Return the name of a gateway. Raises :class:`ConfigurationError` for one that cannot be a folder's name."""
    if not _GATEWAY.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a gateway; give 1 to 100 letters, digits, - and _",
            code="name-invalid",
            name=name,
        )
    return name


def claim_name(generation: int, random: str) -> str:
    """The name of a claim; ``random`` has eight hexadecimal digits."""
    return f"{generation:020d}-{random}.claim"


def generation_name(generation: int) -> str:
    """The name of the folder of a generation."""
    return f"{generation:020d}"


def origin_of(gateway: str, generation: int) -> str:
    """The origin of the events of a generation; those of an earlier generation are sorted first."""
    return f"{gateway}/{generation_name(generation)}"


def claimed(names: Iterable[str]) -> dict[str, int]:
    """The claims among the names in a gateway's folder, with their generations."""
    return {name: int(found[1]) for name in names if (found := _CLAIM.fullmatch(name))}


def generation_folders(names: Iterable[str]) -> list[int]:
    """The generations that have a folder, among the names in a gateway's folder."""
    return [int(name) for name in names if _GENERATION.fullmatch(name)]


def event_files(names: Iterable[str]) -> list[InboxFile]:
    """The files of events among the names in the folder of a generation, in their order."""
    found = (_FILE.fullmatch(name) for name in names)
    return sorted(InboxFile(*map(int, one.groups())) for one in found if one is not None)


Unread = Mapping[int, tuple[InboxFile, ...]]
"""The unread files of a gateway, by generation; a generation without unread files is there too."""


class InboxReader:
    """The inbox of the application at ``location``, resolved by the Spark session ``spark`` if this process has one.

    Not for several threads at once. Methods raise :class:`wallaroo_spark.errors.CheckpointError` when files cannot be
    read or deleted.
    """

    def __init__(self, location: Location, spark: Any = None) -> None:
        self._location, self._spark = location, spark
        self._listings: dict[tuple[str, ...], FolderListing] = {}
        self._parsed: dict[tuple[str, ...], tuple[list[str], tuple[InboxFile, ...]]] = {}
        self._deleted: dict[str, InboxPosition] = {}
        """The positions up to which files are deleted."""

    def unread(self, positions: Mapping[str, InboxPosition], *, fresh: bool = False) -> dict[str, Unread]:
        """Return the files behind ``positions``, by gateway: those of the position's generation and of newer ones.

        A gateway without a position is read from its first generation. The claims of generations are listed before
        their files, as the writer expects. ``fresh`` lists every folder, also one that seems to be unchanged.
        """
        found: dict[str, Unread] = {}
        for gateway in filter(is_writer, self._names(fresh=fresh)):
            at = positions.get(gateway, InboxPosition())
            claims = claimed(self._names(gateway, fresh=fresh))
            generations = {one for one in claims.values() if one >= at.generation}
            newest = max(generations, default=0)
            files: dict[int, tuple[InboxFile, ...]] = {}
            for generation in sorted(generations):
                # An older generation is left for ever when nothing in it is unread, so its listing is never a kept one.
                here = gateway, generation_name(generation)
                listed = self._names(*here, fresh=fresh or generation < newest)
                files[generation] = self._behind(here, listed, at.sequence if generation == at.generation else 0)
            found[gateway] = files
        known = {(gateway, generation_name(one)) for gateway, files in found.items() for one in files}
        self._listings = {key: one for key, one in self._listings.items() if len(key) < 2 or key in known}
        self._parsed = {key: parsed for key, parsed in self._parsed.items() if key in known}
        return found

    def require_claims(self, positions: Mapping[str, InboxPosition]) -> None:
        """Raise :class:`CheckpointError` when the claim of a position's generation and all newer ones are missing.

        Lists the folders anew.
        """
        for gateway, at in sorted(positions.items()):
            folder = self._folder(gateway)
            newest = max(claimed(folder.names()).values(), default=0)
            if newest < at.generation:
                raise lost_generation(gateway, at, newest, folder.identity)

    def read(self, gateway: str, generation: int, file: InboxFile) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of a file, with the schema INPUT."""
        folder = self._folder(gateway, generation_name(generation))
        try:
            with folder.filesystem.open_input_stream(folder.file(file.name)) as data, pa.ipc.open_stream(data) as rows:
                for batch in rows:
                    yield batch.cast(INPUT)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{folder.identity}/{file.name} is missing, and a batch has to read it; restore the folder _wallaroo "
                "along with the checkpoint",
                code="inbox-missing",
                file=file.name,
            ) from error
        except (OSError, pa.ArrowInvalid) as error:
            raise CheckpointError(
                f"{folder.identity}/{file.name} cannot be read: {error}; check that every executor reaches the "
                "application's file system",
                code="checkpoint-unreadable",
                file=file.name,
            ) from error

    def delete_read(self, positions: Mapping[str, InboxPosition]) -> int:
        """Delete the files up to ``positions``, which a committed batch has reached; return the number of files.

        Of each gateway the claim of its generation remains, and with it the number of the generation. Only folders are
        listed of gateways whose position has changed since the last call.
        """
        deleted = 0
        for gateway, at in positions.items():
            if self._deleted.get(gateway) == at:
                continue
            folder = self._folder(gateway)
            listed = folder.names()
            for generation in generation_folders(listed):
                if generation < at.generation:
                    folder.delete_folder(generation_name(generation))
                    passed(InboxStep.READ_HALF_DELETED)
            for name, generation in claimed(listed).items():
                if generation < at.generation:
                    folder.delete(name)
                    passed(InboxStep.READ_HALF_DELETED)
            files = self._folder(gateway, generation_name(at.generation))
            for file in event_files(files.names()):
                if file.sequence <= at.sequence:
                    files.delete(file.name)
                    deleted += 1
                    passed(InboxStep.READ_HALF_DELETED)
            self._deleted[gateway] = at
        return deleted

    def _behind(self, folder: tuple[str, ...], listed: list[str], last: int) -> tuple[InboxFile, ...]:
        """The files behind a number; what is listed is parsed once, because an unchanged folder has the same list."""
        known = self._parsed.get(folder)
        if known is None or known[0] is not listed:
            known = self._parsed[folder] = listed, tuple(event_files(listed))
        files = known[1]
        return files[bisect.bisect_right(files, last, key=lambda file: file.sequence) :]

    def _names(self, *folder: str, fresh: bool) -> list[str]:
        if folder not in self._listings:
            self._listings[folder] = FolderListing(self._folder(*folder))
        return self._listings[folder].names(fresh=fresh)

    def _folder(self, *below: str) -> SidecarFolder:
        return SidecarFolder(self._location, INBOX, *below, spark=self._spark)


_CLAIMS = 12
"""The most claims of one :meth:`InboxWriter.open`. Several processes of one gateway are rare, and the pauses
between the claims are random and grow."""
_PAUSE_SECONDS = 0.02
"""The longest pause after the first claim that another process disputed; it doubles with each."""


class InboxWriter:
    """The writer of one generation of a gateway in the application at ``location``. Its calls block; one thread at a
    time.

    ``gateway`` is the gateway's name; the driver's own is ``driver``. ``spark`` is a Spark session of this process, if
    it has one. :meth:`open` begins a generation, and each later call of it a newer one. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written.
    """

    def __init__(self, location: Location, gateway: str, spark: Any = None) -> None:
        self._location, self._spark, self._gateway = location, spark, checked_gateway(gateway)
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
            newest = max(claimed(listed).values(), default=0)
            if read is not None and newest < read.generation:
                raise lost_generation(self._gateway, read, newest, self._own.identity)
            generation = max((*claimed(listed).values(), *generation_folders(listed)), default=0) + 1
            claim = claim_name(generation, uuid.uuid4().hex[:8])
            self._own.write(claim, b"")
            passed(InboxStep.GENERATION_CLAIMED)
            # Of several claims of one generation, the one that is written last sees the others, on every file system. A
            # claim that sees another one of its generation is given up, so at most one of them is taken.
            others = {name: number for name, number in claimed(self._own.names()).items() if name != claim}
            if max(others.values(), default=0) < generation:
                self.generation, self._sequence, self._claim = generation, 0, claim
                name = generation_name(generation)
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
        data = as_arrow_stream(received_rows(origin_of(self._gateway, self.generation), file.sequence, events))
        self._files = None
        # It is written again under its own name with its own content, so a second writing changes nothing.
        three_times(files.write, file.name, data)
        passed(InboxStep.EVENTS_WRITTEN)
        self._check_newest()
        self._files, self._sequence = files, file.sequence
        return file.sequence

    def superseded(self) -> bool:
        """Whether a newer generation of this gateway has begun, so that nothing more of this one is read.

        Raises :class:`CheckpointError` when the claim of this generation is gone although there is no newer one: the
        folder was deleted, or replaced by an older copy.
        """
        claims = claimed(self._own.names())
        newest = max(claims.values(), default=0)
        if newest <= self.generation and self._claim and self._claim not in claims:
            raise lost_generation(
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
