"""The file of a capture can be read: complete, cut short, rotated, and without cookies."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.page import worked
from wallaroo_spark.errors import ConfigurationError, TransportError, WallarooError
from wallaroo_spark.protocol import REVISIONS, Hello
from wallaroo_spark.wiretap.decoding import DecodedFrame, decode
from wallaroo_spark.wiretap.framing import HelloMask
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import Passed, Recorder, Remark, read

COOKIE = b"sesame-of-the-tests"
CONNECTOR, WORKER = End.CONNECTOR, End.WORKER


def recorder(path: Path, **settings: Any) -> Recorder:
    ticks = itertools.count(1_700_000_000)
    return Recorder(path, "worker-1:7100", clock=lambda: float(next(ticks)), **settings)


def frames(*paths: Path) -> list[DecodedFrame]:
    """The frames of files, the oldest first."""
    opened = [path.open("rb") for path in paths]
    try:
        return [one for one in decode(read(opened)) if isinstance(one, DecodedFrame)]
    finally:
        for file in opened:
            file.close()


def hello(revision: str, cookie: bytes = COOKIE) -> bytes:
    return REVISIONS[revision].encode(Hello("0.0.1", cookie, "orders", "shop-1"))


@pytest.mark.parametrize("size", [1, 3, 100_000])
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_cookie_is_masked_however_it_arrives(tmp_path: Path, revision: str, size: int) -> None:
    written = recorder(tmp_path / "file")
    data = hello(revision) + b"\x00\x00"
    written.opened(1, "peer:1")
    for at in range(0, len(data), size):
        written.passed(1, CONNECTOR, data[at : at + size])
    written.close()

    with (tmp_path / "file").open("rb") as file:
        recorded = b"".join(event.data for event in read([file]) if isinstance(event, Passed))
    assert recorded == data.replace(COOKIE, b"*" * len(COOKIE))
    assert (tmp_path / "file").stat().st_mode & 0o077 == 0


def test_the_cookie_is_recorded_when_asked_for(tmp_path: Path) -> None:
    written = recorder(tmp_path / "file", keep_cookies=True)
    written.opened(1, "peer:1")
    written.passed(1, CONNECTOR, hello("v3"))
    written.close()

    assert frames(tmp_path / "file")[0].fields()["cookie"] == COOKIE


@pytest.mark.parametrize("missing", range(1, 30))
def test_a_hello_that_is_cut_short_shows_nothing_of_the_cookie(missing: int) -> None:
    mask = HelloMask()
    data = hello("draft-be")

    recorded = mask.feed(data[:-missing]) + mask.finish()

    assert len(recorded) == len(data) - missing
    assert b"sesame" not in recorded


def test_a_hello_whose_lengths_are_wrong_shows_nothing_of_the_cookie() -> None:
    mixed = hello("draft-le")[:5] + hello("draft-be")[5:]  # the fields have another byte order than the frame
    mask = HelloMask()

    assert b"sesame" not in mask.feed(mixed) + mask.finish()


def test_bytes_of_another_protocol_are_kept_as_they_are(tmp_path: Path) -> None:
    written = recorder(tmp_path / "file")
    written.opened(1, "peer:1")
    written.passed(1, CONNECTOR, b"GET / HTTP/1.1\r\n\r\n")
    written.passed(1, WORKER, b"\x00\x01")
    written.closed(1, "the worker closed")
    written.close()

    first, second = frames(tmp_path / "file")
    assert (first.data, second.data) == (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x01")
    assert "not the protocol" in first.error


def test_tls_is_refused_with_the_way_out(tmp_path: Path) -> None:
    told: list[WallarooError] = []
    written = recorder(tmp_path / "file", failed=told.append)
    written.opened(1, "shop:5000")

    with pytest.raises(TransportError, match=r"shop:5000 speaks TLS.*--tls-certificate"):
        written.passed(1, CONNECTOR, b"\x16\x03\x01\x02\x00")
    assert len(told) == 1


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(ConfigurationError, match="exists"):
        recorder(tmp_path / "file")


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    written = recorder(tmp_path / "file")
    written.opened(1, "peer:1")
    written.passed(1, CONNECTOR, hello("v3"))
    written.passed(1, WORKER, bytes.fromhex("00000005 01 00000064"))
    data = (tmp_path / "file").read_bytes()
    written.close()
    (tmp_path / "file").write_bytes(data[:-9])

    assert [frame.name for frame in frames(tmp_path / "file")] == ["HELLO"]


def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    written = recorder(tmp_path / "file")
    written.opened(1, "peer:1")
    written.fault(1, "a pause")
    written.close()
    lines = (tmp_path / "file").read_bytes().splitlines(keepends=True)
    lines[1] = b'{"at": 1, "connection": "x"}\n'

    events = list(read([io.BytesIO(b"".join(lines))]))

    assert [event.text for event in events if isinstance(event, Remark)] == [
        "line 2 of the capture is damaged and is left out",
        "a pause",
    ]


@pytest.mark.parametrize("text", ["", "not JSON\n", '{"another": 1}\n'])
def test_a_file_that_is_no_capture_is_refused(text: str) -> None:
    refused = io.BytesIO(text.encode())
    if not text:
        assert list(read([refused])) == []
        return
    with pytest.raises(ConfigurationError, match="is no capture"):
        list(read([refused]))


@pytest.mark.parametrize("size", [7, 50])
def test_a_rotated_capture_is_read_whole_and_each_file_alone(tmp_path: Path, size: int) -> None:
    session = next(one for one in worked() if one.kind == "draft-be" and one.whole)
    path = tmp_path / "file"
    written = recorder(path, max_bytes=800, keep=1000)
    written.opened(1, "peer:1")
    for frame in session.frames:
        for at in range(0, len(frame.wire), size):
            written.passed(1, CONNECTOR if frame.out else WORKER, frame.wire[at : at + size])
    written.close()

    files = sorted(tmp_path.iterdir(), key=lambda one: int(one.suffix[1:] or 0), reverse=True)
    assert len(files) >= 3
    assert all(file.stat().st_size <= 1300 for file in files)
    whole = frames(*files)
    assert [frame.name for frame in whole] == [frame.name for frame in session.frames]
    assert not [frame.error for frame in whole if frame.error]
    alone = [frame for file in files for frame in frames(file)]
    assert {frame.name for frame in alone if frame.frame} <= {frame.name for frame in session.frames}
    assert not [f.error for f in alone if f.error and "earlier file" not in f.error and "ended within" not in f.error]


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written = recorder(path, max_bytes=1000, keep=2)
    written.opened(1, "peer:1")
    for _ in range(30):
        written.fault(1, "x" * 200)
    written.close()

    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "file.1", "file.2"]
    assert json.loads((tmp_path / "file").read_text().splitlines()[0])["part"] > 3


def test_a_file_that_cannot_be_written_any_more_is_told(tmp_path: Path) -> None:
    told: list[WallarooError] = []
    written = recorder(tmp_path / "file", max_bytes=500, failed=told.append)
    (tmp_path / "file.1").mkdir()
    written.opened(1, "peer:1")

    with pytest.raises(ConfigurationError, match="cannot be written"):
        written.fault(1, "x" * 600)
    assert len(told) == 1
