"""``docs/protocol.md`` says what the codecs do: its frames, tables, limits and reasons are those of the code."""

from __future__ import annotations

import ast
import re

import pytest

from tests.protocol.page import PAGE, Shown, Worked, frame_of, worked
from tests.protocol.pairs import admit, connector_events
from wallaroo_spark.protocol import (
    REVISIONS,
    Ack,
    ConnectorSession,
    EosMessage,
    Error,
    Flags,
    Hello,
    Message,
    MessageRun,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    WorkerSession,
    faults,
)
from wallaroo_spark.protocol.codecs import frame_name
from wallaroo_spark.protocol.sessions.session import DEFAULT_MAX_STREAMS
from wallaroo_spark.protocol.sessions.worker_session import MAX_INSTANCE_BYTES, MAX_NAME_BYTES
from wallaroo_spark.protocol.sinks.messages import CONTROL_ROWS, CONTROL_STREAM, decode_control
from wallaroo_spark.protocol.sinks.sessions import SUPERSEDED, SinkServerSession, SinkWorkerSession

WORKED = worked()
TEXT = PAGE.read_text(encoding="utf-8")
FRAMES = [
    pytest.param(block, shown, id=f"{block.kind}-{number}-{shown.name}")
    for block in WORKED
    for number, shown in enumerate(block.frames)
]
SESSIONS = [
    pytest.param(block, id=f"{block.kind}-{len(block.frames)}")
    for block in WORKED
    if block.whole and block.kind != "sink" and not any(shown.name == "ERROR" for shown in block.frames[:2])
]


def rows(heading: str) -> list[list[str]]:
    """The cells of all tables of a section."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize(("block", "shown"), FRAMES)
def test_a_worked_frame_agrees_with_the_codecs(block: Worked, shown: Shown) -> None:
    frame = frame_of(shown.name, shown.fields)

    assert block.revision.encode(frame) == shown.wire
    assert block.revision.decode(shown.wire[4], shown.wire[5:]) == frame


def test_every_frame_of_every_revision_is_worked() -> None:
    shown = {(block.revision.name, type(frame_of(one.name, one.fields))) for block in WORKED for one in block.frames}
    # ERROR and HELLO are alike in all of them.
    wanted = {
        (name, row.frame) for name, revision in REVISIONS.items() for row in revision.rows if row.frame is not Error
    }

    assert wanted <= shown
    assert {frame_name(row.frame) for row in CONTROL_ROWS} <= {one.name for block in WORKED for one in block.frames}


@pytest.mark.parametrize("block", SESSIONS)
def test_a_worked_session_is_one_that_a_worker_holds(block: Worked) -> None:
    session = WorkerSession(version="0.0.1", cookie=b"secret")
    for shown in block.frames:
        if shown.out:
            session.receive(shown.wire)
            while (event := session.next_event()) is not None:
                if isinstance(event, MessageRun):
                    assert admit(session, event).error is None
        else:
            assert told(session, shown) == shown.wire
    assert session.pending == 0


def told(session: WorkerSession, shown: Shown) -> bytes | None:
    """The frame that a worker sends for a line of the page."""
    match frame_of(shown.name, shown.fields):
        case Ok(credits, streams):
            return session.ok(credits, streams)
        case Ack(credits, refs):
            return session.ack(credits, refs)
        case Nack(credits, stream_id, ref):
            return session.nack(stream_id, ref, credits)
        case NotifyAck(success, stream_id, ref):
            return session.notify_ack(stream_id, ref, success=success)
        case Restart(address):
            return session.restart(address)
        case Error(reason):
            return session.error(reason)
    raise AssertionError(f"a worker does not send {shown.name}")


@pytest.mark.parametrize("block", SESSIONS)
def test_a_worked_session_is_one_that_a_connector_holds(block: Worked) -> None:
    session = ConnectorSession(block.revision)
    for shown in block.frames:
        frame = frame_of(shown.name, shown.fields)
        match frame:
            case Hello(version, cookie, program, instance):
                sent = session.hello(version=version, cookie=cookie, program=program, instance=instance)
            case Notify(stream_id, name, ref):
                sent = session.notify(stream_id, name, ref)
            case Message() if shown.name == "MESSAGE" and session.is_open(frame.stream_id):
                sent = session.message(frame)
            case Message():
                # One that was on its way when the NACK came.
                continue
            case EosMessage(stream_id, message_id):
                sent = session.end_of_stream(stream_id, message_id or 0)
            case _:
                session.receive(shown.wire)
                assert connector_events(session) == [frame]
                continue
        assert sent == shown.wire


def test_the_worked_session_with_a_sink_is_one_that_both_sides_hold() -> None:
    (block,) = [block for block in WORKED if block.kind == "sink"]
    worker, sink = SinkWorkerSession(1 << 20), SinkServerSession(1 << 20, version="0.0.1")
    for shown in block.frames:
        frame = frame_of(shown.name, shown.fields)
        session = worker if shown.out else sink
        match frame:
            case Hello(version, cookie, program, instance):
                sent = worker.hello(version=version, cookie=cookie, program=program, worker=instance)
            case Ok():
                sent = sink.ok()
            case Notify():
                sent = worker.notify(frame.name, frame.ref)
            case NotifyAck():
                sent = sink.notify_ack(frame.ref)
            case Message(stream_id=stream_id, payload=payload):
                assert payload is not None
                control = stream_id == CONTROL_STREAM
                sent = session.control(decode_control(payload)) if control else worker.rows([payload])
            case _:
                raise AssertionError(f"{shown.name} is no frame of a session with a sink")
        assert sent == shown.wire
        other = sink if shown.out else worker
        other.receive(sent)
        assert other.next_event() is not None
        assert other.next_event() is None


def test_the_table_of_tags_is_that_of_the_revisions() -> None:
    columns = {"draft-le": 1, "draft-be": 2, "v3": 3}
    said: dict[str, dict[str, int]] = {name: {} for name in columns}
    for row in rows("Framing"):
        names = re.findall(r"[A-Z_]{2,}", row[0])
        for revision, column in columns.items():
            cells = re.findall(r"`(.)`|(\d)|(–)", row[column]) if len(row) > column else []
            for name, (letter, number, _) in zip(names, cells, strict=False):
                if letter or number:
                    said[revision][name] = ord(letter) if letter else int(number)

    assert said == {
        name: {frame_name(row.frame): row.tag for row in revision.rows} for name, revision in REVISIONS.items()
    }


def test_the_table_of_bodies_has_a_field_list_for_the_frames_that_a_revision_has() -> None:
    columns = {"draft-le": 2, "draft-be": 3, "v3": 4}
    bodies = {row[0]: row for row in rows("Frame bodies") if len(row) == 5}

    for name, revision in REVISIONS.items():
        has = {frame for frame, row in bodies.items() if row[columns[name]] != "–" and frame.isupper()}
        assert has == {frame_name(row.frame) for row in revision.rows}


def test_the_table_of_flags_is_that_of_the_code() -> None:
    said = {row[0]: int(row[1]) for row in rows("Frame bodies") if len(row) == 3 and row[1].isdigit()}

    assert said == {flag.name: flag.value for flag in Flags}


def test_the_table_of_control_messages_is_that_of_the_code() -> None:
    said = {row[1]: int(row[0]) for row in rows("Sinks") if row[0].isdigit()}

    assert said == {frame_name(row.frame): row.tag for row in CONTROL_ROWS}


def test_the_limits_are_those_of_the_code() -> None:
    said = {row[0]: row[1] for row in rows("Limits")}

    assert said["instance name"] == f"1 to {MAX_INSTANCE_BYTES} bytes"
    assert said["stream name"] == f"{MAX_NAME_BYTES:,} bytes"
    streams = said["streams of a session that are open, or whose end is not acknowledged"]
    assert streams == said["credit debt by NOTIFY"] == f"{DEFAULT_MAX_STREAMS:,}"


def test_the_reasons_that_a_connector_acts_on_are_those_of_the_code() -> None:
    begins, later, ends = (row[0] for row in rows("Reasons that a connector may act on")[2:5])

    assert faults.redirect("HOST:PORT", "") == _quoted(begins)
    assert faults.later("") == _quoted(later)
    assert faults.superseded("shop-1", "host:1").endswith(_quoted(ends))
    assert f"`{SUPERSEDED}`" in TEXT.replace("\n", " ")


def _quoted(cell: str) -> str:
    found = re.search(r"`(.+?)`", cell)
    assert found, cell
    return found[1]


@pytest.mark.no_cover
def test_every_reason_of_the_page_is_one_that_the_code_says() -> None:
    texts = []
    for path in (PAGE.parents[1] / "wallaroo_spark").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            texts += [_template(node)]
    said = "\n".join(texts)
    section = rows("Reasons that a connector may act on")
    wanted = [part for row in section[7:] for part in re.findall(r"`(.+?)`", row[0])]

    assert len(wanted) > 25
    assert [part for part in wanted if part not in said] == []


def _template(node: ast.AST) -> str:
    """A text of the source, without the values that are inserted."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    return ""
