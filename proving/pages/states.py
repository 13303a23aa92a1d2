"""The state diagrams of the protocol, of two-phase commit and of Aqueduct, drawn from the tables that run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wallaroo_spark.aqueduct.machine.states import MACHINE, RECEIVER, SENDER
from wallaroo_spark.protocol import REVISIONS, SESSION, SessionState, frame_name
from wallaroo_spark.protocol.sinks.messages import PHASES
from wallaroo_spark.sinks.server.journal import TRANSACTION

HEAD = """\
# Session and stream states

Drawn from the tables in `wallaroo_spark/protocol/sessions/states.py` by
`python -m proving.pages`. A frame or an event without an arrow is a protocol
error: the side that receives it sends ERROR with a reason, reads nothing more, and closes.

"""
_SESSION_TEXT = (
    "`→` is sent by the connector, `←` by the worker. The picture has the frames of all revisions; a revision without "
    "a frame has no such arrow."
)


def states_page() -> str:
    """The page as Markdown with Mermaid diagrams: one for sessions, one for the streams of each revision."""
    parts = [HEAD, "## Session\n\n", _SESSION_TEXT, "\n\n", _diagram(_session_arrows(), SessionState.CONNECTED)]
    for revision in REVISIONS.values():
        parts += [f"\n## Streams of {revision.name}\n\n", _diagram(_table_arrows(revision.streams), "start")]
    return "".join(parts)


def sink_diagrams() -> dict[str, str]:
    """Mermaid diagrams of a transaction in a sink, and of the transaction of a session."""
    tables: dict[str, Mapping[Any, Mapping[Any, str]]] = {"transaction": TRANSACTION, "phase": PHASES}
    return {name: _diagram(_table_arrows(table), next(iter(table))) for name, table in tables.items()}


def aqueduct_diagrams() -> dict[str, str]:
    """Mermaid diagrams of a connection of Aqueduct at each side, and of the two halves of a channel."""
    tables: dict[str, Mapping[Any, Mapping[Any, str]]] = {
        **{side.name.lower(): table for side, table in MACHINE.items()},
        "sender": SENDER,
        "receiver": RECEIVER,
    }
    return {name: _diagram(_table_arrows(table), next(iter(table))) for name, table in tables.items()}


def _session_arrows() -> dict[tuple[str, str], list[str]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (role, table), sign in zip(SESSION.items(), "→←", strict=True):
        assert role in ("connector", "worker")
        for state, row in table.items():
            for frame, target in row.items():
                arrows.setdefault((state, target), []).append(f"{sign} {frame_name(frame)}")
    for state in (SessionState.STREAMING, SessionState.RESTARTING, SessionState.ERROR):
        arrows.setdefault((state, SessionState.DISCONNECTED), []).append("closed")
    return arrows


def _table_arrows(table: Mapping[Any, Mapping[Any, str]]) -> dict[tuple[str, str], list[str]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, row in table.items():
        for event, target in row.items():
            arrows.setdefault((state, target), []).append(str(event))
    return arrows


def _diagram(arrows: Mapping[tuple[str, str], list[str]], first: str) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_name(first)}"]
    for (state, target), labels in arrows.items():
        lines.append(f"    {_name(state)} --> {_name(target)}: {', '.join(labels)}")
    return "\n".join([*lines, "```", ""])


def _name(state: str) -> str:
    return state.replace("-", "_")
