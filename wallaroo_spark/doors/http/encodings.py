"""Compressed bodies: gzip and zstd, decompressed piece by piece within limits of size and of expansion. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from wallaroo_spark.doors.http.problems import Problem

PIECE_BYTES = 256 << 10
"""Decompressed bytes of one piece. A choice: about a millisecond of work."""
EXPANSION = 200
"""How many times as long as the compressed body the decompressed one may be, beyond ``FREE_BYTES``.

A choice: logs and rows of tables reach some 50, and a bomb of gzip 1,000.
"""
FREE_BYTES = 1 << 20
"""Decompressed bytes from which the expansion is limited."""
ENCODINGS = ("gzip", "x-gzip", "zstd", "identity", "")


def check_encoding(encoding: str) -> None:
    """Raise :class:`Problem` for an encoding that is not known."""
    if encoding.lower() not in ENCODINGS:
        raise Problem(
            "http-media-type",
            f"Content-Encoding {encoding[:64]!r} is not known; send gzip, zstd or no encoding",
            {"Accept-Encoding": "gzip, zstd"},
        )


def decompressed(encoding: str, body: bytes, most: int) -> Iterator[bytes]:
    """The pieces of the decompressed body. Raises :class:`Problem` when it is broken, too long or a bomb."""
    pieces = _zstd(body) if encoding.lower() == "zstd" else _gzip(body)
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > most:
            raise Problem("http-body-too-large", f"the decompressed body has more than {most} bytes (http.maxBody)")
        if total > FREE_BYTES and total > EXPANSION * len(body):
            raise Problem(
                "http-body-too-large", f"the body expands to more than {EXPANSION} times its {len(body)} bytes"
            )
        yield piece


def _gzip(body: bytes) -> Iterator[bytes]:
    rest = body
    try:
        while rest:
            # A gzip file may have several members.
            reader = zlib.decompressobj(wbits=31)
            while not reader.eof:
                piece = reader.decompress(rest, PIECE_BYTES)
                rest = reader.unconsumed_tail
                if piece:
                    yield piece
                elif not rest and not reader.eof:
                    raise Problem("http-body-unreadable", "the body ends within its gzip data")
            rest = reader.unused_data
    except zlib.error as error:
        raise Problem("http-body-unreadable", f"the body is not gzip: {error}") from None


def _zstd(body: bytes) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
    except (OSError, pa.ArrowException) as error:
        raise Problem("http-body-unreadable", f"the body is not zstd: {error}") from None
