"""A file that is followed across rotations: every record once and in order, also when it is read again."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark.connector import Record, RotatedFramed, RotatedLines
from wallaroo_spark.connector.sources import rotated
from wallaroo_spark.errors import ConfigurationError, ReplayError

POLL = 0.001


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotated, "SETTLE_SECONDS", 3 * POLL)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.fixture
def source(path: Path, tmp_path: Path) -> Callable[[], RotatedLines]:
    """A new process that follows the same file."""
    return lambda: RotatedLines(path, positions=tmp_path / "state" / "app.json", poll=POLL)


async def take(records: AsyncIterator[Record], count: int) -> list[tuple[int | None, bytes]]:
    async with asyncio.timeout(60):
        found = [await anext(records) for _ in range(count)]
    return [(record.id, record.payload) for record in found]


def begin(source: RotatedLines, after: int | None = None) -> AsyncIterator[Record]:
    return source.read(after)


def write(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def rename(path: Path) -> None:
    """As logrotate does with ``create``: the oldest last."""
    for number in range(5, 0, -1):
        before = path.with_name(f"{path.name}.{number}")
        if before.exists():
            before.rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))


def compress(path: Path, ending: str) -> None:
    """As gzip, bzip2 and xz do: the time of the file stays."""
    modules: dict[str, Any] = {"gz": gzip, "bz2": bz2, "xz": lzma}
    packed, found = path.with_name(f"{path.name}.{ending}"), path.stat()
    packed.write_bytes(modules[ending].compress(path.read_bytes()))
    os.utime(packed, ns=(found.st_atime_ns, found.st_mtime_ns))
    path.unlink()


def delete(path: Path) -> None:
    path.unlink()


def copy_and_truncate(path: Path) -> None:
    shutil.copy(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)


ROTATIONS = [rename, copy_and_truncate]


@pytest.mark.parametrize("rotate", ROTATIONS)
async def test_lines_go_on_in_the_next_file_as_one_stream(
    path: Path, source: Callable[[], RotatedLines], rotate: Callable[[Path], None]
) -> None:
    write(path, b"one\ntwo\n")
    records = begin(source())
    assert await take(records, 2) == [(4, b"one"), (8, b"two")]
    write(path, b"three\nno newline")
    rotate(path)
    write(path, b"four\n")
    assert await take(records, 3) == [(14, b"three"), (24, b"no newline"), (29, b"four")]
    rotate(path)
    write(path, b"five\n")
    assert await take(records, 1) == [(34, b"five")]


@pytest.mark.parametrize("rotate", ROTATIONS)
@pytest.mark.parametrize("after", [None, 4, 8, 14, 19, 24])
async def test_another_process_goes_on_behind_any_reference_across_rotations(
    path: Path, source: Callable[[], RotatedLines], rotate: Callable[[Path], None], after: int | None
) -> None:
    write(path, b"one\ntwo\n")
    first = begin(source())
    await take(first, 2)
    write(path, b"three\n")
    rotate(path)
    write(path, b"four\n")
    assert await take(first, 2) == [(14, b"three"), (19, b"four")]
    write(path, b"five\nsix\n")
    everything = [(4, b"one"), (8, b"two"), (14, b"three"), (19, b"four"), (24, b"five"), (28, b"six")]
    expected = [one for one in everything if one[0] > (after or 0)]
    assert await take(begin(source(), after), len(expected)) == expected


async def test_files_that_were_rotated_several_times_while_nobody_followed_are_read_in_order(
    path: Path, source: Callable[[], RotatedLines]
) -> None:
    write(path, b"one\n")
    await take(begin(source()), 1)
    for number, line in enumerate((b"two\n", b"three\n", b"four\n")):
        write(path, b"" if number else b"rest\n")
        os.utime(path, ns=(number * 10**9 + 10**18, number * 10**9 + 10**18))
        rename(path)
        write(path, line)
    found = await take(begin(source(), 4), 4)
    assert [line for _, line in found] == [b"rest", b"two", b"three", b"four"]


async def test_lines_that_are_written_to_the_renamed_file_at_first_come_before_those_of_the_new_one(
    path: Path, source: Callable[[], RotatedLines]
) -> None:
    write(path, b"one\n")
    records = begin(source())
    await take(records, 1)
    with path.open("ab") as held:
        rename(path)
        held.write(b"late\n")
    write(path, b"new\n")
    assert [line for _, line in await take(records, 2)] == [b"late", b"new"]


async def test_a_file_that_is_deleted_and_made_again_goes_on(path: Path, source: Callable[[], RotatedLines]) -> None:
    write(path, b"one\n")
    records = begin(source())
    await take(records, 1)
    delete(path)
    waiting = asyncio.ensure_future(take(records, 1))
    await asyncio.sleep(5 * POLL)
    write(path, b"two\n")
    assert await waiting == [(8, b"two")]


async def test_a_file_that_is_not_there_yet_is_waited_for(path: Path, source: Callable[[], RotatedLines]) -> None:
    waiting = asyncio.ensure_future(take(begin(source()), 1))
    await asyncio.sleep(5 * POLL)
    write(path, b"one\n")
    assert await waiting == [(4, b"one")]


async def test_a_deleted_file_is_the_end_where_that_is_asked_for(path: Path, tmp_path: Path) -> None:
    write(path, b"one\nrest")
    records = RotatedLines(path, positions=tmp_path / "p", poll=POLL, until_deleted=True).read(None)
    assert await take(records, 1) == [(4, b"one")]
    delete(path)
    assert await take(records, 1) == [(8, b"rest")]
    with pytest.raises(StopAsyncIteration):
        await anext(records)


async def test_a_stream_that_was_followed_before_without_positions_is_continued(
    path: Path, source: Callable[[], RotatedLines]
) -> None:
    write(path, b"one\ntwo\n")
    assert await take(begin(source(), 4), 1) == [(8, b"two")]


async def test_unacknowledged_lines_whose_file_is_gone_are_named(
    path: Path, source: Callable[[], RotatedLines]
) -> None:
    write(path, b"one\ntwo\n")
    first = begin(source())
    await take(first, 2)
    rename(path)
    write(path, b"three\n")
    await take(first, 1)
    delete(path.with_name("app.log.1"))
    with pytest.raises(ReplayError, match=r"from reference 4 to reference 8 are not acknowledged.*app\.log\.1"):
        await take(begin(source(), 4), 1)
    assert await take(begin(source(), 8), 1) == [(14, b"three")]


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz"])
async def test_files_that_were_compressed_before_they_were_read_are_read_in_their_order(
    path: Path, source: Callable[[], RotatedLines], ending: str
) -> None:
    write(path, b"one\ntwo\n")
    await take(begin(source()), 1)
    rename(path)
    compress(path.with_name("app.log.1"), ending)
    write(path, b"three\n")
    rename(path)
    path.with_name(f"app.log.1.{ending}").rename(path.with_name(f"app.log.2.{ending}"))
    compress(path.with_name("app.log.1"), ending)
    write(path, b"four\n")

    assert await take(begin(source(), 4), 3) == [(8, b"two"), (14, b"three"), (19, b"four")]
    assert await take(begin(source(), 8), 2) == [(14, b"three"), (19, b"four")]


async def test_a_file_is_compressed_while_it_is_read(path: Path, source: Callable[[], RotatedLines]) -> None:
    write(path, b"one\n")
    records = begin(source())
    await take(records, 1)
    write(path, b"two\n")
    rename(path)
    compress(path.with_name("app.log.1"), "gz")
    write(path, b"three\n")

    assert await take(records, 2) == [(8, b"two"), (14, b"three")]


async def test_a_file_that_is_being_compressed_is_read_under_its_old_name(
    path: Path, source: Callable[[], RotatedLines]
) -> None:
    write(path, b"one\n")
    await take(begin(source()), 1)
    rename(path)
    write(path, b"two\n")
    rename(path)
    write(path.with_name("app.log.1.gz"), gzip.compress(b"two\n")[:-6])
    write(path, b"three\n")

    assert await take(begin(source(), 4), 2) == [(8, b"two"), (14, b"three")]


async def test_a_compressed_file_that_cannot_be_read_is_an_error(
    path: Path, source: Callable[[], RotatedLines]
) -> None:
    write(path, b"one\n")
    await take(begin(source()), 1)
    rename(path)
    unknown, broken = path.with_name("app.log-2.zst"), path.with_name("app.log-2.gz")
    write(unknown, b"compressed")
    write(path, b"two\n")
    with pytest.raises(ReplayError, match=r"app\.log-2\.zst was compressed before it was read.*delaycompress"):
        await take(begin(source(), 4), 1)
    unknown.rename(broken)
    with pytest.raises(ConfigurationError, match=r"app\.log-2\.gz cannot be read: it cannot be expanded"):
        await take(begin(source(), 4), 1)


async def test_positions_that_cannot_be_kept_are_refused_with_the_way_out(path: Path, tmp_path: Path) -> None:
    write(path, b"one\n")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"choose another folder \(positions, --positions\)"):
        await take(RotatedLines(path, positions=tmp_path / "file" / "p").read(None), 1)


async def test_a_line_that_is_too_long_is_named_behind_those_before_it(path: Path, tmp_path: Path) -> None:
    write(path, b"one\ntwo\n" + b"x" * 20 + b"\nthree\n")

    def read(too_long: str) -> AsyncIterator[Record]:
        positions = tmp_path / f"p-{too_long}"
        return RotatedLines(path, positions=positions, poll=POLL, longest=10, too_long=too_long).read(None)

    records = read("error")
    await take(records, 2)
    with pytest.raises(ConfigurationError, match=r"app\.log, line 3: it has 20 bytes, and the limit is 10; shorten"):
        await anext(records)
    assert await take(read("skip"), 3) == [(4, b"one"), (8, b"two"), (35, b"three")]
    assert await take(read("cut"), 4) == [(4, b"one"), (8, b"two"), (29, b"x" * 10), (35, b"three")]


def framed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


@pytest.mark.parametrize("rotate", ROTATIONS)
@pytest.mark.parametrize("after", [None, 7, 14, 23])
async def test_framed_records_go_on_in_the_next_file_and_in_another_process(
    path: Path, tmp_path: Path, rotate: Callable[[Path], None], after: int | None
) -> None:
    def read(after: int | None = None) -> AsyncIterator[Record]:
        return RotatedFramed(path, positions=tmp_path / "p", poll=POLL).read(after)

    write(path, framed(b"one", b"t\no"))
    records = read()
    assert await take(records, 2) == [(7, b"one"), (14, b"t\no")]
    write(path, framed(b"three"))
    rotate(path)
    write(path, framed(b"four") + framed(b"five")[:5])
    assert await take(records, 2) == [(23, b"three"), (31, b"four")]
    write(path, framed(b"five")[5:])
    everything = [(7, b"one"), (14, b"t\no"), (23, b"three"), (31, b"four"), (39, b"five")]
    assert await take(records, 1) == everything[-1:]
    expected = [one for one in everything if one[0] > (after or 0)]
    assert await take(read(after), len(expected)) == expected


async def test_a_file_that_is_rotated_within_a_framed_record_is_an_error(path: Path, tmp_path: Path) -> None:
    write(path, framed(b"one") + framed(b"two")[:5])
    records = RotatedFramed(path, positions=tmp_path / "p", poll=POLL).read(None)
    assert await take(records, 1) == [(7, b"one")]
    rename(path)
    write(path, framed(b"three"))
    with pytest.raises(ReplayError, match="was rotated within the record at reference 7: 5 bytes of it are there"):
        await take(records, 1)
