"""Checks of a connector: each is the script of a worker, up to the end of the user's program.

Source: ``docs/conformance.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from wallaroo_spark.conformance.checks import Check, CheckPlan, CheckResult, run_check
from wallaroo_spark.conformance.connector_runs import LINES, CheckedConnector, ConnectorRun
from wallaroo_spark.protocol import Ack, Error, Nack, Restart
from wallaroo_spark.protocol.faults import later, redirect, superseded

SPECIAL_LINES = (b"first", b"", "caf\u00e9 \u2603".encode(), b" spaces ", b"x" * 70_000, b"last")
"""Messages that are empty, not ASCII, or longer than a u16 counts."""


def _handshake(run: ConnectorRun) -> None:
    session = run.accept()
    session.quiet("the connector waits for OK")
    session.answer()
    session.finish()


def _messages(run: ConnectorRun) -> None:
    run.lines = SPECIAL_LINES
    session = run.accept()
    session.answer()
    session.finish()


def _end_of_stream(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer(len(LINES) + 1)
    session.filled(len(LINES))
    session.quiet("the connector waits for a credit, where the end of a stream takes one")
    session.all_sent()
    session.quiet("the connector waits until the end of its stream is acknowledged")
    session.commit()
    session.closed()
    run.exits()


def _credits(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer(0)
    session.quiet("the connector waits for credits")
    session.send(Ack(3))
    for _ in range(2):
        session.take(lambda: session.wire.credits == 0, "as many frames as there are credits")
        session.quiet("the connector waits for credits")
        session.commit()
        session.quiet("the connector waits for credits; an ACK with references alone gives none")
        session.send(Ack(1))
    session.finish()


def _split_frames(run: ConnectorRun) -> None:
    session = run.accept()
    session.apart = True
    session.answer()
    session.finish()


def _joined_frames(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer(1, Ack(2), Ack(3))
    expected = "6 credits used, which came in an OK and two ACKs at once"
    session.take(lambda: session.wire.credits == 0, expected)
    session.quiet("the connector waits for credits")
    # The second half of the last ACK comes later.
    session.commit(1, more=[Ack(1), Ack(2)], cut=4)
    session.quiet("the connector waits for the rest of a frame")
    session.wire.send(session.revision.encode(Ack(2))[-4:])
    session.finish()


def _lost_connection(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer()
    session.filled(10)
    session.commit(5, more=[Ack(1)], cut=3)
    session.wire.close(reset=True)
    session = run.accept()
    # A worker that has just started knows the ids of streams and not their names.
    session.answer(name=False)
    session.finish()


def _worker_dies(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer()
    session.all_sent()
    session.wire.close(reset=True)
    run.turn_away()
    session = run.accept()
    session.answer()
    session.finish()


def _rewind(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer()
    session.filled(10)
    session.commit(5)
    if session.revision.has(Nack):
        session.rewind(2)
        before = session.notifies
        session.take(lambda: session.notifies == before + 2, "a NOTIFY for each of two NACKs")
    else:
        session.send(Restart())
        session.goes_back()
        session = run.accept()
        session.answer()
    session.finish()


def _leaving(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer()
    session.filled(10)
    session.commit(5)
    if session.revision.has(Nack):
        session.rewind(1)
        session.send(Error(later("the worker leaves")))
    session.wire.close()
    session = run.accept()
    session.answer()
    session.finish()


def _restart_with_address(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer()
    session.filled(1)
    session.send(Restart(run.moved()))
    session.goes_back()
    session = run.accept()
    session.answer()
    session.finish()


def _redirect(run: ConnectorRun) -> None:
    session = run.accept()
    session.send(Error(redirect(run.moved(), "that worker has the instance")))
    session.wire.close()
    session = run.accept()
    session.answer()
    session.finish()


def _try_again_later(run: ConnectorRun) -> None:
    session = run.accept()
    session.send(Error(later("the worker is full")))
    session.wire.close()
    session = run.accept()
    session.answer()
    session.finish()


def _refused_cookie(run: ConnectorRun) -> None:
    session = run.accept()
    session.send(Error("the cookie is not the one that is expected here"))
    session.wire.close()
    run.stays_away()


def _superseded(run: ConnectorRun) -> None:
    session = run.accept()
    session.answer()
    session.filled(1)
    session.send(Error(superseded(run.instance, "192.0.2.1:50000")))
    session.wire.close()
    run.stays_away()


def _refused_stream(run: ConnectorRun) -> None:
    session = run.accept()
    session.accepting = False
    session.answer()
    session.take(lambda: session.notifies == 1, "NOTIFY")
    session.accepting = True
    session.take(lambda: session.notifies == 2, "NOTIFY again behind NOTIFY_ACK with success 0")
    session.finish()


_DRAFTS = ("draft-le", "draft-be")

CHECKS: Sequence[Check[ConnectorRun]] = (
    Check(
        "handshake",
        "HELLO comes first, with the version, the cookie and the instance that were given, and nothing before OK.",
        "docs/protocol.md#session-states",
        _handshake,
    ),
    Check(
        "messages",
        "Lines that are empty, not ASCII, or of 70,000 bytes are messages, each once and in order, behind NOTIFY.",
        "docs/protocol.md#frame-bodies",
        _messages,
    ),
    Check(
        "end-of-stream",
        "The stream is ended, in the drafts with a credit, and the connection stays open until that is acknowledged.",
        "docs/protocol.md#stream-states",
        _end_of_stream,
    ),
    Check(
        "credits",
        "OK gives 0 credits, ACKs a few: no MESSAGE is sent without one, and each one is used.",
        "docs/protocol.md#credits",
        _credits,
    ),
    Check("split-frames", "The worker's bytes come one by one.", "docs/protocol.md#framing", _split_frames),
    Check(
        "joined-frames",
        "OK and ACKs come in one piece, later two ACKs and a half.",
        "docs/protocol.md#framing",
        _joined_frames,
    ),
    Check(
        "lost-connection",
        "The connection is reset within an ACK: the connector connects again and goes on behind the committed message.",
        "docs/protocol.md#points-of-reference",
        _lost_connection,
    ),
    Check(
        "worker-dies",
        "The worker dies with all messages, none of them acknowledged, and is away for a moment: all are sent again.",
        "docs/protocol.md#when-to-try-again",
        _worker_dies,
    ),
    Check(
        "rewind",
        "NACK is answered with NOTIFY, once for each, and RESTART by connecting again; then the messages come again.",
        "docs/protocol.md#rewinding",
        _rewind,
    ),
    Check(
        "leaving",
        "The worker shuts down and closes in order: the connector connects again and sends what is not committed.",
        "docs/protocol.md#rewinding",
        _leaving,
    ),
    Check(
        "restart-with-address",
        "RESTART has an address: the connector connects to it.",
        "docs/protocol.md#rewinding",
        _restart_with_address,
        ("v3",),
    ),
    Check(
        "redirect",
        "HELLO is answered with `redirect to HOST:PORT`: the connector connects to that address.",
        "docs/protocol.md#which-worker",
        _redirect,
    ),
    Check(
        "try-again-later",
        "HELLO is answered with `try again later`: the connector connects again.",
        "docs/protocol.md#reasons-that-a-connector-may-act-on",
        _try_again_later,
    ),
    Check(
        "refused-cookie",
        "HELLO is answered with an ERROR for a person: the connector does not come back, and its program fails.",
        "docs/protocol.md#when-to-try-again",
        _refused_cookie,
    ),
    Check(
        "superseded",
        "A newer session takes the place of this one: the connector does not come back, and its program fails.",
        "docs/protocol.md#reasons-that-a-connector-may-act-on",
        _superseded,
        _DRAFTS,
    ),
    Check(
        "refused-stream",
        "NOTIFY is answered with success 0: the connector sends it again.",
        "docs/protocol.md#stream-states",
        _refused_stream,
        ("v3",),
    ),
)


def plan(setting: CheckedConnector, checks: Sequence[Check[ConnectorRun]] = CHECKS) -> CheckPlan:
    """The checks to make, each with a run of the program."""
    return CheckPlan([functools.partial(_checked, setting, check) for check in checks], stop=setting.kill)


def _checked(setting: CheckedConnector, check: Check[ConnectorRun]) -> CheckResult:
    with ConnectorRun(setting, check.name, check.revisions) as run:
        return run_check(check, run)
