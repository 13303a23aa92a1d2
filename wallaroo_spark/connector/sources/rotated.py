"""A file of lines or framed records that is followed across rotations, as one stream.

A reference counts the bytes of all files that had the path, one after the other, so it is the base of a file and the
offset in it. The bases stand in a small file of positions, which is durable before the first record of a file is sent.
A file is known again by its device, inode and first bytes, also under the name that a rotation has given it.
"""

from __future__ import annotations

import asyncio
import bz2
import dataclasses
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from wallaroo_spark.connector.record import AsyncGroupedRecords, MessageColumns, Record
from wallaroo_spark.connector.sources import files
from wallaroo_spark.connector.sources.files import LONGEST_RECORD, Framed, Lines, _FileSource, is_at
from wallaroo_spark.errors import ConfigurationError, ReplayError, one_line

_log = one_line("wallaroo_spark.connector")

HEAD_BYTES = 1024
"""Bytes at the beginning of a file by which it is recognised. A choice: the first lines of a log carry a time."""

SETTLE_SECONDS = 1.0
"""Seconds for which a renamed file must not grow before the next one is read. A choice: a program that is told of a
rotation reopens its log at once, and writes the line that it is at to the old file."""

_ROTATED = re.compile(r"[._-]\d[\w.-]*")
"""The ending that a rotation adds to a name: ``.1``, ``-20260131``, ``.2026-01-31.1``."""
EXPANDED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""The function that opens a compressed file, by the ending of its name."""
_COMPRESSED = (*EXPANDED, ".zst", ".lz4", ".zip")


@dataclass(frozen=True)
class Generation:
    """One of the files that had the path."""

    base: int
    """The reference at its beginning."""
    device: int
    """Number of its device."""
    inode: int
    """Number of its inode."""
    head_bytes: int
    """Number of its first bytes that are in ``head``."""
    head: str
    """Hash of its first bytes."""

    @classmethod
    def of(cls, file: BinaryIO, base: int) -> Generation:
        """The generation of an open file."""
        found = os.fstat(file.fileno())
        first = os.pread(file.fileno(), HEAD_BYTES, 0)
        return cls(base, found.st_dev, found.st_ino, len(first), _hash(first))

    def begins_as(self, file: BinaryIO) -> bool:
        """Whether an open file begins with the bytes of this one."""
        first = os.pread(file.fileno(), self.head_bytes, 0)
        return len(first) == self.head_bytes and _hash(first) == self.head

    def is_file(self, found: os.stat_result) -> bool:
        """Whether this is the file of these facts, perhaps with other content."""
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


class _RotatedFile(_FileSource):
    """A file that grows and is rotated; a class of records is beside it in the bases."""

    def _keep_positions(self, positions: str | os.PathLike[str], until_deleted: bool) -> None:
        """Set up the file of positions, behind the other base's ``__init__``."""
        self._positions = Path(positions)
        self._until_deleted = until_deleted
        self._at = 0
        self._modified = 0
        self._ended = False
        self._compressed: set[tuple[int, int]] = set()

    def read(self, after: int | None) -> AsyncIterator[Record]:
        """The records after reference ``after``. Raises as :meth:`Lines.read`; while reading, too."""
        return AsyncGroupedRecords(self._all(after))

    async def _all(self, after: int | None) -> AsyncGenerator[MessageColumns, None]:
        self._ended = False
        self._at = after or 0
        known = self._load()
        if not known:
            first = await self._next([])
            if first is None:
                return
            known = [first]
            self._save(known)
        if after is None and known[0].base:
            _log.warning("file %s: the receiver has no record of it; it begins with the oldest known file", self.path)
        self._at = known[0].base if after is None else after
        if self._at < known[0].base:
            raise self._lost(self._at, known[0].base)
        index = max(number for number, one in enumerate(known) if one.base <= self._at)
        # Files before this one are committed. One more is kept for a receiver that goes back by a batch.
        known, index = known[max(0, index - 1) :], min(index, 1)
        while not self._ended:
            end = known[index + 1].base if index + 1 < len(known) else None
            async for columns in self._generation(known, index, end):
                yield columns
                self._raise_refused()
            if end is None and not self._ended:
                following = await self._next(known)
                if following is None:
                    return
                known = [*known, following]
                self._save(known)
            index += 1

    async def _generation(
        self, known: list[Generation], index: int, end: int | None
    ) -> AsyncGenerator[MessageColumns, None]:
        """The records of one file from the present place; of the last known one until it was rotated."""
        one, rest, quiet, told = known[index], b"", 0.0, False
        file = self._find(one, self._at)
        if file is None:
            if end is not None and self._at >= end:
                return
            raise self._lost(self._at, end)
        try:
            self._check_place(file, one, end)
            file.seek(self._at - one.base)
            while True:
                if not self._intact(file, one, len(rest)):
                    copy = self._find(one, self._at + len(rest), but=file)
                    if copy is None:
                        _log.warning(
                            "file %s was truncated at reference %d, and no copy of its bytes is beside it; bytes that "
                            "were not read before are lost",
                            self.path,
                            self._at + len(rest),
                        )
                        break
                    file.close()
                    file = copy
                    file.seek(self._at + len(rest) - one.base)
                left = files.CHUNK_BYTES if end is None else min(files.CHUNK_BYTES, end - self._at - len(rest))
                data = file.read(left)
                if data:
                    quiet = 0.0
                    columns, rest, self._at = self._columns(rest + data, self._at)
                    yield columns
                    known[index] = one = self._refined(known, index, file)
                    continue
                if end is not None:
                    if self._at + len(rest) < end:
                        raise self._lost(self._at + len(rest), end)
                    break
                place = self._place()
                if place is None and not told:
                    told = True
                    if self._until_deleted and not list(self._rotated()):
                        self._ended = True
                        break
                    _log.warning("file %s is not there; waiting for a new one", self.path)
                if place is not None and not is_at(place, file):
                    if quiet >= SETTLE_SECONDS:
                        break
                    quiet += self._poll
                await asyncio.sleep(self._poll)
            self._modified = os.fstat(file.fileno()).st_mtime_ns
            if rest:
                # The file does not grow any more, so a last line needs no newline.
                columns = self._last(rest, self._at)
                self._at += len(rest)
                yield columns
        finally:
            file.close()

    async def _next(self, known: list[Generation]) -> Generation | None:
        """The file that follows the last known one, once it has a byte.

        Where none is known, it is the file that has the path; its references are its offsets, as those of Lines.
        """
        while True:
            rotated = sorted(self._rotated(), key=_modified) if known else []
            for path in [*rotated, self.path]:
                try:
                    if path != self.path and self._is_seen(path):
                        continue
                    with self._plain(path) as file:
                        found = os.fstat(file.fileno())
                        if not known:
                            self._check_size(file, self._at)
                            self._check_boundary(file, self._at)
                        if found.st_size and not (known and self._is_known(file, found, known, path)):
                            new = Generation.of(file, self._at if known else 0)
                            # The copy of a compressed file is not the file that is found again.
                            return dataclasses.replace(new, device=0, inode=0) if self._is_expanded(path) else new
                except FileNotFoundError:
                    continue
                except EOFError:
                    # It is being compressed, and the file that it is made of is there until that is done.
                    if path.with_suffix("").exists():
                        continue
                    break
                except OSError as error:
                    raise self._unreadable(error) from error
            if self._until_deleted and self._place() is None:
                return None
            await asyncio.sleep(self._poll)

    def _is_known(self, file: BinaryIO, found: os.stat_result, known: list[Generation], path: Path) -> bool:
        last = known[-1]
        if path == self.path:
            return last.is_file(found) and found.st_size >= self._at - last.base and last.begins_as(file)
        if path.suffix in _COMPRESSED:
            self._compressed.add(_facts(path))
            return any(one.begins_as(file) for one in known)
        if found.st_mtime_ns < self._modified:
            return True
        ends = [*(one.base for one in known[1:]), self._at]
        sizes = [end - one.base for one, end in zip(known, ends, strict=True)]
        # A file that has grown after it was renamed keeps its inode, a copy has its size.
        return any(
            one.begins_as(file) and (one.is_file(found) or found.st_size == size)
            for one, size in zip(known, sizes, strict=True)
        )

    def _is_seen(self, path: Path) -> bool:
        """Whether a compressed file needs no look: it is older than the last bytes that were read, or was looked at.

        Raises :class:`ReplayError` for one that cannot be read here.
        """
        if path.suffix not in _COMPRESSED:
            return False
        if _modified(path) <= self._modified or _facts(path) in self._compressed:
            return True
        if path.suffix not in EXPANDED:
            raise self._changed(
                f"file {path} was compressed before it was read; uncompress it, and let the rotation compress files "
                "later (delaycompress), or with gzip, bzip2 or xz",
                path=str(path),
            )
        return False

    def _is_expanded(self, path: Path) -> bool:
        """Whether a file is expanded before it is read."""
        return path.suffix in EXPANDED and path != self.path

    def _plain(self, path: Path) -> BinaryIO:
        """A file for reading; of a compressed one an expanded copy without a name. Raises EOFError for part of one."""
        if not self._is_expanded(path):
            return path.open("rb")
        copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller closes it
        try:
            with EXPANDED[path.suffix](path) as file:
                shutil.copyfileobj(file, copy)
            copy.flush()
            copy.seek(0)
            found = path.stat()
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
        except BaseException as error:
            copy.close()
            if isinstance(error, gzip.BadGzipFile | lzma.LZMAError | zlib.error):
                raise OSError(errno.EINVAL, f"it cannot be expanded ({error})", str(path)) from error
            raise
        return copy

    def _intact(self, file: BinaryIO, one: Generation, rest: int) -> bool:
        """Whether an open file still has the bytes that were read."""
        return os.fstat(file.fileno()).st_size >= self._at + rest - one.base and one.begins_as(file)

    def _refined(self, known: list[Generation], index: int, file: BinaryIO) -> Generation:
        """Recognise a file by more bytes once it has them."""
        one = known[index]
        if one.head_bytes < HEAD_BYTES and os.fstat(file.fileno()).st_size >= HEAD_BYTES and one.begins_as(file):
            one = dataclasses.replace(Generation.of(file, one.base), device=one.device, inode=one.inode)
            known[index] = one
            self._save(known)
        return one

    def _find(self, one: Generation, reached: int, but: BinaryIO | None = None) -> BinaryIO | None:
        """Open the file of a generation: the same inode first, then a copy of it."""
        for same, compressed in ((True, False), (False, False), (False, True)):
            for path in (self.path, *self._rotated()):
                if self._is_expanded(path) is not compressed:
                    continue
                try:
                    if compressed and not _begins(path, one):
                        continue
                    file = self._plain(path)
                except (OSError, EOFError, lzma.LZMAError, zlib.error):
                    continue
                found = os.fstat(file.fileno())
                other = but is None or not is_at(found, but)
                large = found.st_size >= reached - one.base
                right = compressed or one.is_file(found) is same
                if other and large and right and one.begins_as(file):
                    self._reading = path
                    return file
                file.close()
        return None

    def _rotated(self) -> Iterator[Path]:
        """The files beside the path that a rotation has named after it."""
        try:
            entries = list(self.path.parent.iterdir())
        except OSError:
            return
        yield from (entry for entry in entries if is_rotated(entry.name, self.path.name))

    def _check_place(self, file: BinaryIO, one: Generation, end: int | None) -> None:
        """Raise :class:`ReplayError` when the present place is not the end of a record, as far as the file shows it."""

    def _load(self) -> list[Generation]:
        try:
            content = self._positions.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._no_positions(error) from error
        try:
            return [Generation(**one) for one in json.loads(content)["files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the positions in {self._positions} cannot be read: {error}; delete that file if no rotated file of "
                f"{self.path} has lines that are not acknowledged",
                code="file-unreadable",
                path=str(self._positions),
            ) from None

    def _save(self, known: list[Generation]) -> None:
        """Write the positions, so that they outlive a crash of the machine."""
        text = json.dumps({"path": str(self.path), "files": [dataclasses.asdict(one) for one in known]}, indent=1)
        new = self._positions.with_name(f"{self._positions.name}.new")
        try:
            self._positions.parent.mkdir(parents=True, exist_ok=True)
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._positions)
            folder = os.open(self._positions.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._no_positions(error) from error

    def _no_positions(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"the positions of file {self.path} cannot be kept in {self._positions}: {error.strerror}; choose another "
            "folder (positions, --positions)",
            code="file-unwritable",
            path=str(self._positions),
        )

    def _lost(self, reference: int, end: int | None) -> ReplayError:
        upto = "its end" if end is None else f"reference {end}"
        return self._changed(
            f"the lines of {self.path} from reference {reference} to {upto} are not acknowledged, and their file is "
            f"not beside it under a rotated name such as {self.path.name}.1; restore it, or delete "
            f"{self._positions} and use another --stream to begin with the present file",
            reference=reference,
        )


class RotatedLines(_RotatedFile, Lines):
    """The lines of a file that grows and is rotated, by renaming or by copying and truncating.

    All lines of the path are one stream, and each line is in it once and in order, also when the program is killed and
    started again, as long as the files with unacknowledged lines are beside the path under rotated names (``.1``,
    ``-20260131``, …), plain or compressed with gzip, bzip2 or xz. ``positions`` is the path of the small file that says
    where each file begins; use one for each stream of each receiver. A file that is not there yet, or was deleted, is
    waited for, or is the end of the stream where ``until_deleted`` is set.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        positions: str | os.PathLike[str],
        name: str = "",
        poll: float = 0.2,
        longest: int = LONGEST_RECORD,
        too_long: str = "error",
        until_deleted: bool = False,
    ) -> None:
        super().__init__(path, follow=True, name=name, poll=poll, longest=longest, too_long=too_long)
        self._keep_positions(positions, until_deleted)

    def _check_place(self, file: BinaryIO, one: Generation, end: int | None) -> None:
        offset = self._at - one.base
        before = os.pread(file.fileno(), 1, offset - 1) if offset else b"\n"
        size = os.fstat(file.fileno()).st_size
        place = self._place()
        final = end is not None or place is None or not is_at(place, file)
        if before != b"\n" and not (final and offset == size):
            raise self._changed(
                f"file {self._reading}: offset {offset} (reference {self._at}) is not the end of a line; the file was "
                f"changed, or the positions in {self._positions} are those of another stream",
                path=str(self._reading),
                reference=self._at,
            )


class RotatedFramed(_RotatedFile, Framed):
    """The records of a file of :class:`Framed` that grows and is rotated between two records; otherwise as
    :class:`RotatedLines`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        positions: str | os.PathLike[str],
        name: str = "",
        poll: float = 0.2,
        until_deleted: bool = False,
    ) -> None:
        super().__init__(path, follow=True, name=name, poll=poll)
        self._keep_positions(positions, until_deleted)

    def _last(self, rest: bytes, at: int) -> MessageColumns:
        raise ReplayError(
            f"file {self._reading} was rotated within the record at reference {at}: {len(rest)} bytes of it are there; "
            "let the program that writes it reopen the file between two records",
            code="source-incomplete",
            path=str(self._reading),
            reference=at,
        )


def is_rotated(name: str, of: str) -> bool:
    """Whether a rotation may have given this name to the file that had the name ``of``."""
    return name.startswith(of) and _ROTATED.fullmatch(name[len(of) :]) is not None


def _begins(path: Path, one: Generation) -> bool:
    """Whether a compressed file begins with the bytes of a generation."""
    with EXPANDED[path.suffix](path) as file:
        return _hash(file.read(one.head_bytes)) == one.head


def _facts(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _hash(first: bytes) -> str:
    return hashlib.blake2b(first, digest_size=16).hexdigest()


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
