"""The entries of systemd's journal, by its program ``journalctl``; an entry's sequence number is its reference."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.bridges.bridge import LogBridge, LogStream, Promise, SourceLog
from wallaroo_spark.bridges.streams import BridgedStream
from wallaroo_spark.connector import Record
from wallaroo_spark.connector.sources.files import LONGEST_RECORD
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import Kind, row, setting

GROUP_ENTRIES = 512
"""Most entries that are handed on together."""
GROUP_SECONDS = 0.05
"""Longest time that entries wait for others."""


@dataclass(eq=False, kw_only=True)
class JournalBridge(LogBridge):
    """Send the entries of systemd's journal on this machine, as JSON; MATCHES select some of them.

    Entries and matches are those of journalctl. The user must be allowed to read the journal (the group
    systemd-journal).

    Examples:
        wallaroo-spark bridge journal --workers host-a:7100
        wallaroo-spark bridge journal _SYSTEMD_UNIT=nginx.service --workers host-a:7100
    """

    promise = Promise("the entry's sequence number", "nothing", "once")

    matches: tuple[str, ...] = field(default=(), kw_only=False, metadata=row(Kind.NAMES))
    """Only entries with these fields."""
    directory: str = setting("", Kind.TEXT)
    """Folder of journal files; empty: this machine's."""
    file: str = setting("", Kind.TEXT)
    """A journal file, or a pattern of them, in place of a folder."""

    @property
    def place(self) -> str:
        """This machine's name, because its journal is another one than that of the next machine."""
        return " ".join([self.file or self.directory or socket.gethostname(), *self.matches])

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream."""
        yield [EntriesStream(self)]


class EntriesStream(LogStream):
    """The entries of a journal."""

    def __init__(self, settings: JournalBridge) -> None:
        super().__init__("journal")
        self._settings = settings

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The entries behind a sequence number."""
        settings = self._settings
        log = await self._log()
        first = self.start(log, after, begin=settings.begin, lost=settings.lost)
        yield []
        place = f"--cursor=s={log.identity.decode()};i={first:x}"
        async with self._lines("--follow", "--no-tail", place, *settings.matches) as lines:
            while True:
                group = []
                for line in await _group(lines):
                    entry = json.loads(line)
                    journal, number = _cursor(entry)
                    if journal != log.identity:
                        raise log.made_again(after)
                    if number >= first:
                        nanos = int(entry["__REALTIME_TIMESTAMP"]) * 1000
                        group.append(Record(log.reference(number), line.rstrip(b"\n"), nanos))
                yield group

    async def _log(self) -> SourceLog:
        async with self._lines("--lines=1") as newest:
            identity, last = _cursor(await _entry(newest))
        async with self._lines() as oldest:
            journal, first = _cursor(await _entry(oldest))
        # A journal may have older files, with numbers of their own.
        return SourceLog("the journal", identity, first if journal == identity else 1, last + 1)

    @contextlib.asynccontextmanager
    async def _lines(self, *options: str) -> AsyncIterator[asyncio.StreamReader]:
        """What journalctl prints."""
        program = shutil.which("journalctl")
        if program is None:
            raise ConfigurationError("journalctl is not on the PATH; install systemd", code="source-setup")
        settings = self._settings
        where = [f"--directory={settings.directory}"] if settings.directory else []
        where += [f"--file={settings.file}"] if settings.file else []
        process = await asyncio.create_subprocess_exec(
            program,
            *("--output=json", "--all", "--quiet", "--no-pager", *where, *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_RECORD,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout
        except EOFError:
            said = (await process.stderr.read()).decode(errors="replace").strip()
            raise ConnectionError(f"journalctl has ended: {said or 'it has printed no entry'}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _group(lines: asyncio.StreamReader) -> list[bytes]:
    """Some lines, at least one. Raises EOFError when there are no more."""
    found = [await _line(lines)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GROUP_SECONDS):
            while len(found) < GROUP_ENTRIES:
                found.append(await _line(lines))
    return found


async def _line(lines: asyncio.StreamReader) -> bytes:
    try:
        return await lines.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise ConfigurationError(
            f"the journal has an entry of more than {LONGEST_RECORD} bytes; leave it out with other matches",
            code="record-too-long",
        ) from error


async def _entry(lines: asyncio.StreamReader) -> Any:
    return json.loads(await _line(lines))


def _cursor(entry: Any) -> tuple[bytes, int]:
    """The identity of the journal that numbers an entry, and its number."""
    parts = dict(part.split("=", 1) for part in entry["__CURSOR"].split(";"))
    return parts["s"].encode(), int(parts["i"], 16)
