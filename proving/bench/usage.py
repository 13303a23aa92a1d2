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
    """One process at one moment."""

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
    """Parse ``/proc/PID/stat``; the name is in parentheses and may contain any characters."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    user, system, children_user, children_system = (int(field) / TICKS for field in fields[11:15])
    return Process(int(pid), int(fields[1]), name, user + system, children_user + children_system)


def processes() -> dict[int, Process]:
    """All visible processes by id."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                process = parse_stat(Path("/proc", entry, "stat").read_text(errors="replace"))
                found[process.pid] = process
    return found


def below(all_of_them: Mapping[int, Process], root: int) -> list[Process]:
    """A process's children, their children, and so on."""
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
    """The role of a process in an installation on one machine; None for other processes."""
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
    """Seconds of processor time by role so far: ``root`` (this process) as "driver", and all processes below it.

    Spark's Python daemons wait for the ended processes of tasks, so the time of those counts too.
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
    """Seconds that each role used between two samples."""
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
    """Reset the peak memory of a process, where the system allows it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
