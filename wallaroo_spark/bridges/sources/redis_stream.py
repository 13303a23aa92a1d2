"""The entries of a Redis Stream, whose ids are the references."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.bridges.bridge import LogBridge, Promise, unreadable
from wallaroo_spark.bridges.streams import BridgedStream, nanoseconds, until_reached
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError, ReplayError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, row

_log = one_line("wallaroo_spark.bridges")

GROUP_ENTRIES = 512
"""Most entries of one read."""
POLL_SECONDS = 0.1
"""Seconds between two looks for new entries."""
ANSWER_SECONDS = 5.0
"""Longest wait for an answer."""
SEQUENCE_BITS = 20
"""Bits of a reference for the number behind the dash of an id; the time in front of it has 44, until the year 2527."""


@dataclass(eq=False, kw_only=True)
class RedisBridge(LogBridge):
    """Send the entries of a Redis STREAM of the server at URL, as JSON objects.

    URL is redis://[[user]:password@]host:6379/0, or env:NAME or file:PATH. Consumer groups are not touched. Bytes that
    are no UTF-8 are written as backslash escapes.

    Examples:
        wallaroo-spark bridge redis redis://cache:6379/0 clicks --workers host-a:7100
    """

    promise = Promise("the entry's id", "nothing", "once")
    extra = "registry"

    url: str = field(kw_only=False, metadata=row(Kind.TEXT, secret=True), repr=False)
    """The server."""
    stream: str = field(kw_only=False, metadata=row(Kind.NAME))
    """The key of the stream."""

    @property
    def place(self) -> str:
        """The stream."""
        return self.stream

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream, when the server answers."""
        stream = EntryStream(self)
        await until_reached(self.stream, self.retry, stream.passing, stream.ping)
        yield [stream]


class EntryStream(BridgedStream):
    """The entries of a stream."""

    def __init__(self, settings: RedisBridge) -> None:
        from redis import RedisError

        super().__init__(settings.stream)
        self.passing = (OSError, RedisError)
        self._settings = settings
        self._counts: deque[tuple[int, int]] = deque()
        """References that are not committed, in their order, and how many entries were ever added up to each."""

    async def ping(self) -> None:
        """Ask the server for an answer."""
        async with self._server() as server:
            await server.ping()

    def _server(self) -> Any:
        import redis.asyncio

        url = resolve_secret(self._settings.url)
        # Clients older than redis-py 6 do not compare names by themselves.
        options: dict[str, Any] = {"ssl_check_hostname": True} if url.startswith("rediss") else {}
        options["socket_timeout"] = ANSWER_SECONDS
        try:
            server: Any = redis.asyncio.Redis.from_url(url, **options)
            server.connection_pool.make_connection()
        except (ValueError, TypeError):
            expected = (
                "redis://[[user]:password@]host:port/0, or rediss:// with what redis-py takes as ?ssl_ca_certs=FILE"
            )
            raise unreadable("Redis", expected) from None
        # As Redis sends them: in a dict, the last one of several fields with one name is left.
        for command in ("XRANGE", "XREVRANGE"):
            server.set_response_callback(command, _as_sent)
        return server

    async def acknowledge(self, reference: int) -> None:
        """Keep the counts from this reference on."""
        while len(self._counts) > 1 and self._counts[1][0] <= reference:
            self._counts.popleft()

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The entries behind an id."""
        while self._counts and self._counts[-1][0] > (after or 0):
            self._counts.pop()
        told = ""
        async with self._server() as server:
            while True:
                facts, found = await self._asked(server, after or 0)
                if after is None:
                    after, found = self._begin(facts, found)
                if facts and (lost := self._lost(facts, after)):
                    if self._settings.lost == "refuse":
                        raise ReplayError(
                            f"Redis Stream {self.name!r} {lost}; trim it less (XTRIM, MAXLEN), and go on with --lost "
                            "skip",
                            code="source-changed",
                            source=self.name,
                            reference=after,
                        )
                    if lost != told:
                        _log.warning("Redis Stream %r %s", self.name, lost)
                        told = lost
                yield [self._record(*entry) for entry in found]
                if facts:
                    self._count(facts, after, found)
                if found:
                    after = self._reference(found[-1][0])
                else:
                    await asyncio.sleep(POLL_SECONDS)

    async def _asked(self, server: Any, after: int) -> tuple[dict[str, Any], Sequence[Any]]:
        """What Redis knows of the stream, nothing where there is none; and its entries behind a reference."""
        from redis import RedisError, ResponseError
        from redis.exceptions import NoPermissionError

        name = self._settings.stream
        # Both at one moment: entries that are deleted behind it were read.
        both = server.pipeline().xinfo_stream(name).xrange(name, f"({entry_id(after)}", count=GROUP_ENTRIES)
        try:
            facts, found = await both.execute(raise_on_error=False)
            if isinstance(found, RedisError):
                raise found
            if isinstance(facts, RedisError) and "no such key" not in str(facts):
                raise facts
        except ResponseError as error:
            if not isinstance(error, NoPermissionError) and "WRONGTYPE" not in str(error):
                raise
            raise ConfigurationError(
                f"Redis does not read {name!r} as a stream: {error}; name the key of a stream, which the user may read",
                code="source-setup",
                source=self.name,
            ) from error
        return ({} if isinstance(facts, RedisError) else facts), found

    def _begin(self, facts: dict[str, Any], found: Sequence[Any]) -> tuple[int, Sequence[Any]]:
        """The reference in front of the first reading, and the entries behind it."""
        self.began = 0
        if self._settings.begin == "latest":
            self.began, found = self._reference(facts.get("last-generated-id", b"0-0")), []
        if facts:
            before = facts["length"] if self._settings.begin == "earliest" else 0
            self._counts.append((self.began, facts.get("entries-added", 0) - before))
        return self.began, found

    def _record(self, entry: bytes, fields: Sequence[bytes]) -> Record:
        """An entry, whose fields are names and values in turn; a name that is there twice is twice in the object."""
        texts = [json.dumps(one.decode(errors="backslashreplace")) for one in fields]
        body = ", ".join(f"{name}: {value}" for name, value in zip(texts[::2], texts[1::2], strict=True))
        time = nanoseconds(int(entry.split(b"-")[0]), 1_000_000)
        return Record(self._reference(entry), f"{{{body}}}".encode(), time)

    def _reference(self, entry: bytes) -> int:
        time, number = map(int, entry.split(b"-"))
        if number >> SEQUENCE_BITS or time >> (64 - SEQUENCE_BITS):
            raise ConfigurationError(
                f"Redis Stream {self.name!r} has an entry {entry.decode()}, and a reference has room for {1 << 44} in "
                f"front of the dash and {1 << SEQUENCE_BITS} behind it; add entries with the id *",
                code="id-out-of-range",
                source=self.name,
            )
        return time << SEQUENCE_BITS | number

    def _lost(self, facts: dict[str, Any], after: int) -> str:
        """What was deleted behind a reference before it was read; empty for nothing. Redis knows it from version 7 on.

        Trimming deletes the oldest entries, and Redis notes only which others were deleted, and how many were added.
        """
        deleted = facts.get("max-deleted-entry-id", b"0-0")
        if deleted != b"0-0" and self._reference(deleted) > after:
            return f"was read up to {entry_id(after)}, and entries up to {deleted.decode()} were deleted"
        added, first = facts.get("entries-added"), facts["first-entry"]
        if added is None or self._reference(facts["last-generated-id"]) <= after:
            return ""
        if first and self._reference(first[0]) <= after:
            return ""
        known = bool(self._counts) and self._counts[-1][0] == after
        gone = added - facts["length"] - (self._counts[-1][1] if known else 0)
        if gone <= 0:
            return ""
        begins = f"begins at {first[0].decode()}" if first else "is empty"
        trimmed = f"{gone} entries between were" if known else "entries between may have been"
        return f"{begins}, and was read up to {entry_id(after)}, which is gone, too: {trimmed} trimmed"

    def _count(self, facts: dict[str, Any], after: int, found: Sequence[Any]) -> None:
        """Note how many entries were ever added up to the last one of a reading, where that is known."""
        added, first = facts.get("entries-added", 0), facts["first-entry"]
        last = self._reference(found[-1][0]) if found else after
        if len(found) < GROUP_ENTRIES:
            count = added
        elif first and first[0] == found[0][0]:
            count = added - facts["length"] + len(found)
        elif self._counts and self._counts[-1][0] == after:
            count = self._counts[-1][1] + len(found)
        else:
            return
        if self._counts and self._counts[-1][0] == last:
            self._counts.pop()
        self._counts.append((last, count))


def _as_sent(answer: Any, **_: Any) -> Any:
    return answer


def entry_id(reference: int) -> str:
    """The id of an entry by its reference."""
    return f"{reference >> SEQUENCE_BITS}-{reference & ((1 << SEQUENCE_BITS) - 1)}"
