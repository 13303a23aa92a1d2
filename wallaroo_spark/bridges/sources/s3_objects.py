"""The lines of the objects of an S3 bucket: each object is a stream, and a line's number its reference."""

from __future__ import annotations

import asyncio
import lzma
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from wallaroo_spark.bridges.bridge import MOST_POSITIONS, Bridge, Promise, SourceLog
from wallaroo_spark.bridges.streams import BridgedStream, until_reached
from wallaroo_spark.connector import Record
from wallaroo_spark.connector.sources.files import LONGEST_RECORD
from wallaroo_spark.connector.sources.rotated import EXPANDED
from wallaroo_spark.errors import ArgumentValueError, ConfigurationError, ReplayError, one_line
from wallaroo_spark.settings import Kind, row, setting

_log = one_line("wallaroo_spark.bridges")

READ_BYTES = 256 * 1024
"""Bytes of one read."""
LAST = MOST_POSITIONS - 1
"""The position of the last line: it says that the object is complete, which its number would not."""


@dataclass(eq=False, kw_only=True)
class S3Bridge(Bridge):
    """Send the lines of the objects of an S3 bucket whose keys begin as in URL, s3://BUCKET/PREFIX.

    Each object is a stream, which has the name of its key and ends with it. Objects that end in .gz, .bz2 or .xz are
    expanded. New objects are sent wherever their key is in the order. Credentials are found as Amazon's tools do it.

    Examples:
        wallaroo-spark bridge s3 s3://logs/web/2026/ --workers host-a:7100
    """

    promise = Promise("the number of the line", "nothing", "once")
    extra = "s3"

    url: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """The bucket and the prefix."""
    start_after: str = setting("", Kind.TEXT)
    """Only objects whose keys are behind this one in the order of bytes."""
    parallel: int = setting(4, Kind.COUNT, minimum=1)
    """Objects that are read at the same time; they are begun in the order of their keys."""
    poll: float = setting(10.0, Kind.SECONDS, minimum=0.01)
    """Seconds between two looks for new objects."""
    endpoint: str = setting("", Kind.TEXT)
    """URL of a server that is not Amazon's."""
    region: str = setting("", Kind.TEXT)
    """The region; empty: as Amazon's tools find it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        scheme, _, rest = self.url.partition("://")
        self.bucket, _, self.prefix = rest.partition("/")
        if scheme != "s3" or not self.bucket:
            raise ArgumentValueError(
                f"{self.url!r} is no URL of objects; write s3://BUCKET/PREFIX",
                code="option-out-of-range",
                argument="url",
            )

    @property
    def place(self) -> str:
        """The bucket and the prefix."""
        return self.url

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """A stream for each object, as they appear, and not more at a time than are read."""
        from botocore.exceptions import BotoCoreError, ClientError

        server = _server(self)
        known: dict[str, S3Object] = {}
        room = asyncio.Semaphore(self.parallel)

        async def listed() -> list[S3Object]:
            return await asyncio.to_thread(self._listed, server)

        while True:
            for one in await until_reached(self.place, self.retry, (OSError, BotoCoreError, ClientError), listed):
                if one.size and known.setdefault(one.key, one) is one:
                    await room.acquire()
                    yield [ObjectStream(self, server, one, room, partial(known.pop, one.key))]
                elif known.get(one.key, one).etag != one.etag:
                    raise one.replaced()
            await asyncio.sleep(self.poll)

    def _listed(self, server: Any) -> list[S3Object]:
        pages = server.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix, StartAfter=self.start_after
        )
        return [
            S3Object(self.bucket, one["Key"], one["ETag"], one["Size"], int(one["LastModified"].timestamp()))
            for page in pages
            for one in page.get("Contents", ())
        ]


@dataclass(frozen=True)
class S3Object:
    """What a list says of an object."""

    bucket: str
    key: str
    etag: str
    size: int
    """Bytes."""
    modified: int
    """Seconds since 1970."""

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"the object s3://{self.bucket}/{self.key}"

    def replaced(self) -> ReplayError:
        """The error for an object that is no longer what was sent, in part or whole."""
        return ReplayError(
            f"{self.title} was replaced or deleted since its lines began to be sent; write new content to a new key, "
            "and use another --instance to send all objects anew",
            code="source-changed",
            source=self.key,
        )


class ObjectStream(BridgedStream):
    """The lines of an object."""

    def __init__(
        self,
        settings: S3Bridge,
        server: Any,
        found: S3Object,
        room: asyncio.Semaphore,
        forget: Callable[[], object],
    ) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        super().__init__(found.key)
        self.passing = (OSError, BotoCoreError, ClientError)
        self._server = server
        self._object = found
        self._room: asyncio.Semaphore | None = room
        self._forget = forget
        self._begun = False

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The lines behind a number."""
        found = self._object
        log = SourceLog(found.title, found.etag.encode(), 1, LAST + 1)
        first = log.start(after, begin="earliest", lost="refuse")
        if first <= LAST and (groups := await self._if_there(after)) is not None:
            number = 0
            while group := await asyncio.to_thread(next, groups, None):
                lines, last = group
                self._begun = True
                numbers = [*range(number + 1, number + 1 + len(lines))]
                number = numbers[-1]
                if last:
                    numbers[-1] = LAST
                yield [
                    Record(log.reference(at), line, found.modified * 1_000_000_000)
                    for at, line in zip(numbers, lines, strict=True)
                    if at >= first
                ]
        if self._room is not None:
            self._room.release()
            self._room = None

    async def _if_there(self, after: int | None) -> Iterator[tuple[list[bytes], bool]] | None:
        """The lines of the object; None where it is gone, and nothing of it was sent. Raises :class:`ReplayError`."""
        try:
            return await asyncio.to_thread(self._opened)
        except ReplayError:
            if self._begun or after:
                raise
            _log.warning(
                "%s was replaced or deleted before it was begun; it is sent if it is listed again", self._object.title
            )
            self._forget()
            return None

    def _opened(self) -> Iterator[tuple[list[bytes], bool]]:
        """The lines of the object. Raises :class:`ReplayError` where it is another one than was listed."""
        from botocore.exceptions import ClientError

        found = self._object
        try:
            answer = self._server.get_object(Bucket=found.bucket, Key=found.key, IfMatch=found.etag)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "PreconditionFailed", "404", "412"):
                raise found.replaced() from error
            raise
        opened = EXPANDED.get(PurePosixPath(found.key).suffix)
        return self._expanded(opened(answer["Body"])) if opened else self._lines(answer["Body"])

    def _expanded(self, file: Any) -> Iterator[tuple[list[bytes], bool]]:
        try:
            yield from self._lines(file)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            # An error of the network has a number, or is one of the client.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ConfigurationError(
                f"{self._object.title} cannot be expanded ({error}); put its right content under a new key, and delete "
                "this one",
                code="source-setup",
                source=self.name,
            ) from error

    def _lines(self, file: Any) -> Iterator[tuple[list[bytes], bool]]:
        """The lines of a file without their newlines, in groups, and whether a group is the last one."""
        held: list[bytes] = []
        rest = b""
        while data := file.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LONGEST_RECORD:
                raise ConfigurationError(
                    f"{self._object.title} has a line of more than {LONGEST_RECORD} bytes; check that it is text",
                    code="record-too-long",
                )
            held += lines
            if len(held) > 1:
                # The last of them may be the last one of all.
                yield held[:-1], False
                held = held[-1:]
        held += [rest] if rest else []
        if held:
            yield held, True


def _server(settings: S3Bridge) -> Any:
    import boto3

    try:
        return boto3.client("s3", endpoint_url=settings.endpoint or None, region_name=settings.region or None)
    except ValueError as error:
        raise ConfigurationError(
            f"the client of S3 cannot be made: {error}; --endpoint is a URL, such as https://store:9000",
            code="source-setup",
        ) from error
