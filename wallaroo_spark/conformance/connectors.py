"""Checks of a connector: each is the script of a worker, up to the end of the user's program.

Source: ``docs/conformance.md``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from wallaroo_spark.conformance.checks import Check, CheckPlan, CheckResult, CheckTable, Mismatch, run_check
from wallaroo_spark.conformance.connector_runs import LINES, CheckedConnector, ConnectorRun
from wallaroo_spark.protocol import Ack, Error, Nack, Restart
from wallaroo_spark.protocol.faults import later, redirect, superseded

SPECIAL_LINES = (b"first", b"", "caf\u00e9 \u2603".encode(), b" spaces ", b"x" * 70_000, b"last")
"""Messages that are empty, not ASCII, or longer than a u16 counts."""
_DRAFTS = ("draft-le", "draft-be")
_LATER = 4
"""How many times in a row a connector is told to try again later."""
_LEAST_PAUSE = 0.05
"""Seconds in front of its next connection. A choice: far below every back-off, and above a loop without one."""
CHECKS = CheckTable[ConnectorRun]()


@CHECKS.check("handshake", "docs/protocol.md#session-states")
def _handshake(run: ConnectorRun) -> None:
    """HELLO comes first, with the version, the cookie and the instance that were given, and nothing before OK."""
    session = run.accept()
    session.quiet("the connector waits for OK")
    session.answer()
    session.finish()


@CHECKS.check("late-ok", "docs/protocol.md#session-states")
def _late_ok(run: ConnectorRun) -> None:
    """OK comes 11 s behind HELLO: the connector waits for it."""
    session = run.accept()
    session.quiet("the connector waits for OK, at least 30 s", run.setting.late)
    session.answer()
    session.finish()


@CHECKS.check("messages", "docs/protocol.md#frame-bodies")
def _messages(run: ConnectorRun) -> None:
    """Lines that are empty, not ASCII, or of 70,000 bytes are messages, each once and in order, behind NOTIFY."""
    run.lines = SPECIAL_LINES
    run.answered().finish()


@CHECKS.check("end-of-stream", "docs/protocol.md#stream-states")
def _end_of_stream(run: ConnectorRun) -> None:
    """The stream is ended, in the drafts with a credit, and the connection stays open until that is acknowledged."""
    session = run.answered(len(LINES) + 1)
    session.filled(len(LINES))
    session.quiet("the connector waits for a credit, where the end of a stream takes one")
    session.all_sent()
    session.quiet("the connector waits until the end of its stream is acknowledged")
    session.commit()
    session.closed()
    run.exits()


@CHECKS.check("late-end", "docs/protocol.md#stream-states", *_DRAFTS)
def _late_end(run: ConnectorRun) -> None:
    """All lines are acknowledged before there is a credit for the end of the stream: it comes when there is one."""
    session = run.answered(len(LINES) + 1)
    session.filled(len(LINES))
    session.commit()
    if session.end is None:
        session.quiet("the connector waits for a credit, with which it ends its stream")
    session.all_sent()
    session.commit()
    session.closed()
    run.exits()


@CHECKS.check("credits", "docs/protocol.md#credits")
def _credits(run: ConnectorRun) -> None:
    """OK gives 0 credits, ACKs a few: no MESSAGE is sent without one, and each one is used."""
    session = run.answered(0)
    session.quiet("the connector waits for credits")
    session.send(Ack(3))
    for _ in range(2):
        session.take(lambda: session.wire.credits == 0, "as many frames as there are credits")
        session.quiet("the connector waits for credits")
        session.commit()
        session.quiet("the connector waits for credits; an ACK with references alone gives none")
        session.send(Ack(1))
    session.finish()


@CHECKS.check("split-frames", "docs/protocol.md#framing")
def _split_frames(run: ConnectorRun) -> None:
    """The worker's bytes come one by one."""
    session = run.accept()
    session.apart = True
    session.answer()
    session.finish()


@CHECKS.check("joined-frames", "docs/protocol.md#framing")
def _joined_frames(run: ConnectorRun) -> None:
    """OK and ACKs come in one piece, later two ACKs and a half."""
    session = run.answered(1, Ack(2), Ack(3))
    expected = "6 credits used, which came in an OK and two ACKs at once"
    session.take(lambda: session.wire.credits == 0, expected)
    session.quiet("the connector waits for credits")
    # The second half of the last ACK comes later.
    session.commit(1, more=[Ack(1), Ack(2)], cut=4)
    session.quiet("the connector waits for the rest of a frame")
    session.wire.send(session.revision.encode(Ack(2))[-4:])
    session.finish()


@CHECKS.check("lost-connection", "docs/protocol.md#points-of-reference")
def _lost_connection(run: ConnectorRun) -> None:
    """The connection is reset within an ACK: the connector connects again and goes on behind the committed message."""
    session = run.answered()
    session.filled(10)
    session.commit(5, more=[Ack(1)], cut=3)
    session.wire.close(reset=True)
    # A worker that has just started knows the ids of streams and not their names.
    run.answered(name=False).finish()


@CHECKS.check("worker-dies", "docs/protocol.md#when-to-try-again")
def _worker_dies(run: ConnectorRun) -> None:
    """The worker dies with all messages, none of them acknowledged, and is away for a moment: all are sent again."""
    session = run.answered()
    session.all_sent()
    session.wire.close(reset=True)
    run.turn_away()
    run.answered().finish()


@CHECKS.check("killed", "docs/protocol.md#points-of-reference")
def _killed(run: ConnectorRun) -> None:
    """The program is killed and started again with the same lines: it goes on behind the committed message."""
    session = run.answered()
    session.filled(10)
    session.commit(5)
    run.killed()
    run.answered(name=False).finish()


@CHECKS.check("rewind", "docs/protocol.md#rewinding")
def _rewind(run: ConnectorRun) -> None:
    """NACK is answered with NOTIFY, once for each, and RESTART by connecting again; then the messages come again."""
    session = run.answered()
    session.filled(10)
    session.commit(5)
    if session.revision.has(Nack):
        session.take(lambda: session.wire.credits == 0, "as many frames as there are credits")
        before = session.notifies
        session.rewind(2, credits=4)
        session.take(lambda: session.notifies == before + 2, "a NOTIFY for each of two NACKs")
        session.take(lambda: session.wire.credits == 0, "8 credits used, which came in two NACKs")
    else:
        session.send(Restart())
        session.goes_back()
        session = run.answered()
    session.finish()


@CHECKS.check("leaving", "docs/protocol.md#rewinding")
def _leaving(run: ConnectorRun) -> None:
    """The worker shuts down and closes in order: the connector connects again and sends what is not committed."""
    session = run.answered()
    session.filled(10)
    session.commit(5)
    if session.revision.has(Nack):
        session.rewind(1)
        session.send(Error(later("the worker leaves")))
    session.wire.close()
    run.answered().finish()


@CHECKS.check("restart-with-address", "docs/protocol.md#rewinding", "v3")
def _restart_with_address(run: ConnectorRun) -> None:
    """RESTART has an address: the connector connects to it."""
    session = run.answered()
    session.filled(1)
    session.send(Restart(run.moved()))
    session.goes_back()
    run.answered().finish()


@CHECKS.check("redirect", "docs/protocol.md#which-worker")
def _redirect(run: ConnectorRun) -> None:
    """HELLO is answered with `redirect to HOST:PORT`: the connector connects to that address."""
    run.accept().refuse(redirect(run.moved(), "that worker has the instance"))
    run.answered().finish()


@CHECKS.check("try-again-later", "docs/protocol.md#reasons-that-a-connector-may-act-on")
def _try_again_later(run: ConnectorRun) -> None:
    """HELLO is answered with `try again later`: the connector connects again, with back-off."""
    session = run.accept()
    pauses = []
    for _ in range(_LATER):
        refused = time.monotonic()
        session.refuse(later("the worker is full"))
        session = run.accept()
        pauses.append(run.came - refused)
    # One may be short: a connector may try once at once.
    if sorted(pauses)[1] < _LEAST_PAUSE:
        expected = f"pauses before it connects again, of {_LEAST_PAUSE:g} s at the least"
        raise Mismatch(expected, f"pauses of {', '.join(f'{one:.3f}' for one in pauses)} s")
    session.answer()
    session.finish()


@CHECKS.check("refused-cookie", "docs/protocol.md#when-to-try-again")
def _refused_cookie(run: ConnectorRun) -> None:
    """HELLO is answered with an ERROR for a person: the connector does not come back, and its program fails."""
    run.accept().refuse("the cookie is not the one that is expected here")
    run.stays_away()


@CHECKS.check("superseded", "docs/protocol.md#reasons-that-a-connector-may-act-on", *_DRAFTS)
def _superseded(run: ConnectorRun) -> None:
    """A newer session takes the place of this one: the connector does not come back, and its program fails."""
    session = run.answered()
    session.filled(1)
    session.refuse(superseded(run.instance, "192.0.2.1:50000"))
    run.stays_away()


@CHECKS.check("refused-stream", "docs/protocol.md#stream-states", "v3")
def _refused_stream(run: ConnectorRun) -> None:
    """NOTIFY is answered with success 0: the connector sends it again."""
    session = run.accept()
    session.accepting = False
    session.answer()
    session.take(lambda: session.notifies == 1, "NOTIFY")
    session.accepting = True
    session.take(lambda: session.notifies == 2, "NOTIFY again behind NOTIFY_ACK with success 0")
    session.finish()


def plan(setting: CheckedConnector, checks: Sequence[Check[ConnectorRun]] = CHECKS) -> CheckPlan:
    """The checks to make, each with a run of the program."""
    return CheckPlan([functools.partial(_checked, setting, check) for check in checks], setting.running)


def _checked(setting: CheckedConnector, check: Check[ConnectorRun]) -> CheckResult:
    with ConnectorRun(setting, check.name, check.revisions) as run:
        return run_check(check, run)
