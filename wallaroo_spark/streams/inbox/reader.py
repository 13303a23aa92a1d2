"""Lists, reads and deletes the files of an inbox."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.sidecar.batch_log import FolderListing
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.steps import InboxStep, passed
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.inbox import names
from wallaroo_spark.streams.inbox.names import InboxFile, InboxPosition
from wallaroo_spark.streams.places import INBOX
from wallaroo_spark.streams.rows import INPUT

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
        for gateway in filter(names.is_writer, self._names(fresh=fresh)):
            at = positions.get(gateway, InboxPosition())
            claims = names.claimed(self._names(gateway, fresh=fresh))
            generations = {one for one in claims.values() if one >= at.generation}
            newest = max(generations, default=0)
            files: dict[int, tuple[InboxFile, ...]] = {}
            for generation in sorted(generations):
                # An older generation is left for ever when nothing in it is unread, so its listing is never a kept one.
                here = gateway, names.generation_name(generation)
                listed = self._names(*here, fresh=fresh or generation < newest)
                files[generation] = self._behind(here, listed, at.sequence if generation == at.generation else 0)
            found[gateway] = files
        known = {(gateway, names.generation_name(one)) for gateway, files in found.items() for one in files}
        self._listings = {key: one for key, one in self._listings.items() if len(key) < 2 or key in known}
        self._parsed = {key: parsed for key, parsed in self._parsed.items() if key in known}
        return found

    def require_claims(self, positions: Mapping[str, InboxPosition]) -> None:
        """Raise :class:`CheckpointError` when the claim of a position's generation and all newer ones are missing.

        Lists the folders anew.
        """
        for gateway, at in sorted(positions.items()):
            folder = self._folder(gateway)
            newest = max(names.claimed(folder.names()).values(), default=0)
            if newest < at.generation:
                raise names.lost_generation(gateway, at, newest, folder.identity)

    def read(self, gateway: str, generation: int, file: InboxFile) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of a file, with the schema INPUT."""
        folder = self._folder(gateway, names.generation_name(generation))
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
            for generation in names.generation_folders(listed):
                if generation < at.generation:
                    folder.delete_folder(names.generation_name(generation))
                    passed(InboxStep.READ_HALF_DELETED)
            for name, generation in names.claimed(listed).items():
                if generation < at.generation:
                    folder.delete(name)
                    passed(InboxStep.READ_HALF_DELETED)
            files = self._folder(gateway, names.generation_name(at.generation))
            for file in names.event_files(files.names()):
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
            known = self._parsed[folder] = listed, tuple(names.event_files(listed))
        files = known[1]
        return files[bisect.bisect_right(files, last, key=lambda file: file.sequence) :]

    def _names(self, *folder: str, fresh: bool) -> list[str]:
        if folder not in self._listings:
            self._listings[folder] = FolderListing(self._folder(*folder))
        return self._listings[folder].names(fresh=fresh)

    def _folder(self, *below: str) -> SidecarFolder:
        return SidecarFolder(self._location, INBOX, *below, spark=self._spark)
