"""Processor time and memory of processes, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from proving.processes import command_of

TICKS = os.sysconf("SC_CLK_TCK")
MEBIBYTE = 1 << 20
ROLES = ("sender", "worker", "reading tasks", "JVM", "planner", "driver", "Redis")


@dataclass(frozen=True)
class Process:
    """One process now: seconds of processor time, its own and of the children that it has collected."""

    pid: int
    """Its process id."""
    parent: int
    """The process id of its parent."""
    name: str
    """Its name, as the kernel has it."""
    own: float
    """Seconds of processor time that it used itself."""
    collected: float
    """Seconds of processor time of its ended children that it has waited for."""


def parse_stat(text: str) -> Process:
    """What ``/proc/PID/stat`` says; the name stands in parentheses and may hold anything."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    user, system, children_user, children_system = (int(field) / TICKS for field in fields[11:15])
    return Process(int(pid), int(fields[1]), name, user + system, children_user + children_system)


def processes() -> dict[int, Process]:
    """All processes that can be seen."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                process = parse_stat(Path("/proc", entry, "stat").read_text(errors="replace"))
                found[process.pid] = process
    return found


def below(all_of_them: Mapping[int, Process], root: int) -> list[Process]:
    """A process's children, theirs and so on."""
    children: dict[int, list[Process]] = {}
    for process in all_of_them.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        own = children.get(todo.pop(), [])
        found += own
        todo += [process.pid for process in own]
    return found


def role_of(process: Process, line: str, workers: Iterable[int]) -> str | None:
    """What a process of an installation on one machine does; None for what has no part in it."""
    if process.pid in workers:
        return "worker"
    if process.name.startswith("redis") or "redis-server" in line:
        return "Redis"
    if process.name == "java":
        return "JVM"
    if "streaming_source_runner" in line:
        return "planner"
    if "pyspark" in line and ("daemon" in line or "worker" in line):
        return "reading tasks"
    if "proving.bench." in line:
        return "sender"
    return None


def cpu_by_role(workers: Iterable[int], root: int | None = None) -> dict[str, float]:
    """Seconds of processor time by role so far, of everything below ``root`` (this process) and of itself, "driver".

    Spark's Python daemons collect the tasks' processes that have ended, so theirs counts too.
    """
    root, known = root or os.getpid(), set(workers)
    everything = processes()
    seconds: defaultdict[str, float] = defaultdict(float)
    if root in everything:
        seconds["driver"] += everything[root].own
    for process in below(everything, root):
        line = command_of(process.pid)
        role = role_of(process, line, known)
        if role is not None:
            seconds[role] += process.own + (process.collected if "pyspark.daemon" in line else 0.0)
    return seconds


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """How much each role used in between, in seconds."""
    return {role: round(after[role] - before.get(role, 0.0), 4) for role in after}


def memory(pid: int) -> tuple[float, float]:
    """Resident memory of a process now and at its peak, in MiB; (0, 0) when it is gone."""
    found = {"VmRSS": 0.0, "VmHWM": 0.0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) / 1024
    return found["VmRSS"], found["VmHWM"]


def forget_peak(pid: int) -> None:
    """Have the peak of a process count from now on, where the system lets us."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
