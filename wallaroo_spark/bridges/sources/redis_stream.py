"""The entries of a Redis Stream, whose ids are the references."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.bridges.bridge import Bridge, Promise, unreadable
from wallaroo_spark.bridges.streams import BridgedStream, nanoseconds, until_reached
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError, ReplayError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, row, setting

GROUP_ENTRIES = 512
"""Most entries of one read."""
POLL_SECONDS = 0.1
"""Seconds between two looks for new entries."""
SEQUENCE_BITS = 20
"""Bits of a reference for the number behind the dash of an id; the time in front of it has 44, until the year 2527."""


@dataclass(eq=False, kw_only=True)
class RedisBridge(Bridge):
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
    begin: str = setting("earliest", Kind.TEXT, choices=("earliest", "latest"))
    """Where to begin if the receiver has nothing of it."""

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
        from redis import exceptions

        super().__init__(settings.stream)
        self.passing = (OSError, exceptions.ConnectionError, exceptions.TimeoutError)
        self._settings = settings

    async def ping(self) -> None:
        """Ask the server for an answer."""
        async with self._server() as server:
            await server.ping()

    def _server(self) -> Any:
        import redis.asyncio

        url = resolve_secret(self._settings.url)
        # Clients older than redis-py 6 do not compare names by themselves.
        verified: dict[str, Any] = {"ssl_check_hostname": True} if url.startswith("rediss") else {}
        try:
            server: Any = redis.asyncio.Redis.from_url(url, **verified)
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

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The entries behind an id."""
        from redis import RedisError, ResponseError

        name = self._settings.stream
        async with self._server() as server:
            if after is None and self._settings.begin == "latest" and (newest := await server.xrevrange(name, count=1)):
                after = self._reference(newest[0][0])
            while True:
                # Both at one moment: entries that are deleted behind it were read.
                both = (
                    server.pipeline().xinfo_stream(name).xrange(name, f"({entry_id(after or 0)}", count=GROUP_ENTRIES)
                )
                facts, found = await both.execute(raise_on_error=False)
                if isinstance(found, ResponseError):
                    raise ConfigurationError(
                        f"Redis does not read {name!r} as a stream: {found}; name the key of a stream, which the user "
                        "may read",
                        code="source-setup",
                        source=self.name,
                    )
                if isinstance(found, RedisError):
                    raise found
                if isinstance(facts, dict) and after is not None:
                    self._check(facts.get("max-deleted-entry-id", b"0-0"), after)
                yield [self._record(*entry) for entry in found]
                if found:
                    after = self._reference(found[-1][0])
                else:
                    await asyncio.sleep(POLL_SECONDS)

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

    def _check(self, deleted: bytes, after: int) -> None:
        """Raise :class:`ReplayError` when entries behind a reference were deleted. Redis knows it from version 7 on."""
        if deleted != b"0-0" and self._reference(deleted) > after:
            raise ReplayError(
                f"Redis Stream {self.name!r} was trimmed up to {deleted.decode()}, and the entries behind "
                f"{entry_id(after)} were not read yet; trim it less (XTRIM, MAXLEN), and use another --instance to "
                "begin anew",
                code="source-changed",
                source=self.name,
                reference=after,
            )


def _as_sent(answer: Any, **_: Any) -> Any:
    return answer


def entry_id(reference: int) -> str:
    """The id of an entry by its reference."""
    return f"{reference >> SEQUENCE_BITS}-{reference & ((1 << SEQUENCE_BITS) - 1)}"
