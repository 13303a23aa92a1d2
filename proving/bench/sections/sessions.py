"""Very many sessions on one worker without Spark: processor time and memory, quiet and with a message now and then.

A driver commits every half second all that has come, so the figures are the worker's own: sockets, frames, columns,
buffer, credits and acknowledgements.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

from proving.bench.descriptors import most_connections
from proving.bench.stage import ROOT, Context
from proving.bench.usage import memory, processes
from proving.processes import end

REVISIONS = ("draft-be", "v3")
RATE = 10_000.0
"""Messages a second of all sessions together: at 10,000 sessions one a second each."""
SETTLE_SECONDS = 2.0
QUIET_SECONDS = 3.0
ANSWER_SECONDS = 180.0
BUDGET = 512 << 20
COOKIE = "a cookie"


def measure(context: Context) -> dict[str, Any]:
    """Each revision with more and more sessions; those that the limit of open files forbids are left out."""
    cases: list[dict[str, Any]] = []
    most = most_connections()
    for revision in REVISIONS:
        first: dict[str, Any] | None = None
        for sessions in context.lengths.sessions:
            if sessions > most:
                context.say(f"  {sessions} sessions: left out, a process may have {most} connections (ulimit -Hn)")
                continue
            context.progress(f"sessions: {sessions} in {revision}")
            case = one(revision, sessions, context.lengths.warm_up + context.lengths.measured / 2)
            first = first or case
            case["cpu_of_first"] = case["cpu_microseconds_a_message"] / first["cpu_microseconds_a_message"]
            cases.append(case)
    return {"rate": RATE, "cases": cases}


def one(revision: str, sessions: int, seconds: float) -> dict[str, Any]:
    """One worker and so many sessions."""
    crowd = {"cookie": COOKIE, "program": "bench", "prefix": "crowd", "revision": revision, "sessions": sessions}
    alone = {"options": {"cookie": COOKIE, "memory_budget": BUDGET}}
    with _started("lone_worker", alone) as worker, contextlib.ExitStack() as clients_too:
        address = _line(worker)["address"]
        time.sleep(SETTLE_SECONDS)
        empty, before = memory(worker.pid)[0], _cpu(worker.pid)
        clients = clients_too.enter_context(
            _started("session_clients", {**crowd, "address": address, "seconds": seconds, "rate": RATE / sessions})
        )
        _line(clients)
        connected = _cpu(worker.pid)
        time.sleep(SETTLE_SECONDS)
        resident, quiet = memory(worker.pid)[0], _cpu(worker.pid)
        time.sleep(QUIET_SECONDS)
        quiet = _cpu(worker.pid) - quiet
        began = _cpu(worker.pid)
        assert clients.stdin is not None
        clients.stdin.write(b"send\n")
        clients.stdin.flush()
        told = _line(clients)
        each = 1e6 * (_cpu(worker.pid) - began) / max(told["sent"], 1)
    return {
        "revision": revision,
        "sessions": sessions,
        "KiB_a_session": 1024 * (resident - empty) / sessions,
        "connecting_microseconds": 1e6 * (connected - before) / sessions,
        "quiet_cores": quiet / QUIET_SECONDS,
        "cpu_microseconds_a_message": each,
        "cores": each * RATE / 1e6,
        "sent": told["sent"],
        "acknowledged": told["acknowledged"],
    }


def cores(result: dict[str, Any], sessions: int = 10_000) -> float:
    """The processor time a second of that many sessions; the more expensive revision."""
    return max(float(case["cores"]) for case in result["cases"] if case["sessions"] == sessions)


def kibibytes(result: dict[str, Any], sessions: int = 10_000) -> float:
    """The memory of a quiet session among that many; the more expensive revision."""
    return max(float(case["KiB_a_session"]) for case in result["cases"] if case["sessions"] == sessions)


def _cpu(pid: int) -> float:
    return processes()[pid].own


@contextlib.contextmanager
def _started(module: str, settings: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", f"proving.bench.{module}", json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        end(process)
        process.stdout.close()


def _line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out: IO[bytes] | None = process.stdout
    assert out is not None
    ready, _, _ = select.select([out], [], [], ANSWER_SECONDS)
    line = out.readline() if ready else b""
    if not line:
        raise RuntimeError(
            f"a process of the bench ended, or said nothing for {ANSWER_SECONDS:.0f} s: {process.args!r}"
        )
    found: dict[str, Any] = json.loads(line)
    return found
