"""``wallaroo-spark decode``: prints the frames of a capture, or of plain bytes, as text or JSON."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

import click

from wallaroo_spark.cli.common import exit_unless
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.protocol import REVISIONS, Fault, Revision
from wallaroo_spark.wiretap.decoding import LONGEST_FRAME, DecodedFrame, decode, decode_bytes
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import ConnectionOpened, Remark, is_capture, read

CHUNK = 64 * 1024
"""Bytes that one read of plain input takes. A choice."""
SHOWN_BYTES = 60
"""Bytes of a payload that are printed without --full. A choice: a frame takes about a line."""
_HEX = frozenset(b"0123456789abcdefABCDEF \t\r\n")
_SIGNS = {End.CONNECTOR: "→", End.WORKER: "←", None: " "}
_BYTES_A_LINE = 32


@verb(name="decode")
def decode_command(
    files: Annotated[tuple[str, ...], "FILE...|-"],
    *,
    revision: Annotated[str | None, click.Choice(list(REVISIONS))] = None,
    with_hex: Annotated[bool, "--hex"] = False,
    full: bool = False,
    connection: Annotated[int | None, click.IntRange(1)] = None,
    errors: bool = False,
    max_frame_bytes: Annotated[int, click.IntRange(1)] = LONGEST_FRAME,
    as_json: Json = False,
) -> None:
    """Print each frame of FILE with its time, connection, direction, offset in bytes, and fields.

    FILE is a capture (of a rotated one all files, the oldest first), or bytes of one direction, plain or in
    hexadecimal; - is standard input. → is sent by the connector, ← by the worker. [N] is the connector's number of
    credits behind the frame.

    An error in a frame is printed with the offset of its byte, and decoding continues at the next frame. Frames are
    also compared with the states of the protocol: a MESSAGE without a credit, or of a stream that is not open, is an
    error. The exit status is 0 even then; with --errors it is 1 when there are any.

    Options:
        --revision: Revision of frames without a HELLO before them.
        --hex: Print the bytes of each frame, too.
        --full: Print payloads whole.
        --connection NUMBER: Only this connection.
        --errors: Only frames that have an error.
        --max-frame-bytes: Longest frame to read. A longer one is an error, and no frame can be found behind it.
        --json: Print a line of JSON for each frame.

    Examples:
        wallaroo-spark decode shop.capture
        wallaroo-spark decode shop.capture.2 shop.capture.1 shop.capture --json
        echo 00000005 01 00000064 | wallaroo-spark decode - --revision v3
    """
    chosen = REVISIONS[revision] if revision else None
    with contextlib.ExitStack() as stack:
        opened = [_open(stack, name) for name in files]
        found = False
        for item in _items(opened, chosen, max_frame_bytes):
            if connection is not None and item.connection != connection:
                continue
            if isinstance(item, DecodedFrame):
                if errors and not item.error:
                    continue
                found = found or bool(item.error)
            elif errors:
                continue
            click.echo(_as_json(item) if as_json else _as_text(item, full, with_hex))
    exit_unless(not (errors and found))


def _open(stack: contextlib.ExitStack, name: str) -> io.BufferedReader:
    if name == "-":
        given: Any = sys.stdin.buffer
        return given if isinstance(given, io.BufferedReader) else io.BufferedReader(given)
    try:
        return stack.enter_context(Path(name).open("rb"))
    except OSError as error:
        raise ConfigurationError(
            f"{name} cannot be read: {error.strerror or error}", code="file-unreadable", path=name
        ) from error


def _items(
    files: Sequence[io.BufferedReader], revision: Revision | None, longest: int
) -> Iterator[DecodedFrame | Remark | ConnectionOpened]:
    start = files[0].peek(CHUNK)
    if is_capture(start):
        yield from decode(read(files), revision, longest)
        return
    if len(files) > 1:
        raise click.UsageError(f"{files[0].name} is no capture; give several files only of one rotated capture")
    yield from decode_bytes(_plain(files[0], as_hex=bool(start) and _HEX.issuperset(start)), revision, longest)


def _plain(file: IO[bytes], *, as_hex: bool) -> Iterator[bytes]:
    odd = ""
    while chunk := file.read(CHUNK):
        if not as_hex:
            yield chunk
            continue
        try:
            digits = odd + "".join(chunk.decode("ascii").split())
            whole = len(digits) // 2 * 2
            odd = digits[whole:]
            yield bytes.fromhex(digits[:whole])
        except ValueError:
            raise ConfigurationError(
                "the input begins in hexadecimal and goes on with other characters", code="capture-invalid"
            ) from None
    if odd:
        raise ConfigurationError(f"the input in hexadecimal ends with half a byte, {odd!r}", code="capture-invalid")


def _as_json(item: DecodedFrame | Remark | ConnectionOpened) -> str:
    match item:
        case DecodedFrame():
            return json.dumps(item.to_json())
        case ConnectionOpened():
            word = "continued" if item.continued else "opened"
            return json.dumps({"at": item.at, "connection": item.connection, word: item.peer})
        case Remark():
            word = "closed" if item.closed else "fault"
            return json.dumps({"at": item.at, "connection": item.connection, word: item.text})


def _as_text(item: DecodedFrame | Remark | ConnectionOpened, full: bool, with_hex: bool) -> str:
    head = f"{_clock(item.at)} #{item.connection}"
    match item:
        case ConnectionOpened():
            return f"{head} --- {'goes on' if item.continued else 'opened'}, connector {item.peer}"
        case Remark():
            return f"{head} --- {'closed: ' if item.closed else ''}{item.text}"
        case DecodedFrame():
            balance = "" if item.credits is None else f" [{item.credits}]"
            lines = [
                f"{head} {_SIGNS[item.sender]} @{item.offset}{balance} {item.text(len(item.data) if full else 60)}"
            ]
            if item.error:
                longer = " (--max-frame-bytes)" if item.code == Fault.FRAME_TOO_LONG else ""
                lines.append(f"    error at byte {item.error_offset}: {item.error}{longer}")
            if with_hex or (item.error and item.frame is None):
                shown = item.data if full or with_hex else item.data[:_BYTES_A_LINE]
                lines += [
                    f"    {shown[at : at + _BYTES_A_LINE].hex(' ')}" for at in range(0, len(shown), _BYTES_A_LINE)
                ]
                if len(shown) < len(item.data):
                    lines[-1] += f" … ({len(item.data)} bytes)"
            return "\n".join(lines)


def _clock(at: float | None) -> str:
    if at is None:
        return "-" * 15
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")
