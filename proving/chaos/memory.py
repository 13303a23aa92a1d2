"""How much memory every process of an installation holds, over time, and whether it grows."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from proving.chaos.stage import Stage
from proving.ticker import Ticker

MEBIBYTE = 1 << 20
SAMPLE_SECONDS = 1.0
PRESENT = 0.8
"""A process is judged when it lived for this part of the time; one that serves a few batches cannot leak much."""


@dataclass
class Series:
    """The samples of one process's resident memory."""

    role: str
    """The process's role in the installation."""
    times: list[float] = field(default_factory=list)
    """Seconds since sampling began, one for each sample."""
    sizes: list[float] = field(default_factory=list)
    """Resident memory in MiB, one for each sample."""

    def after(self, seconds: float) -> tuple[Sequence[float], Sequence[float]]:
        """The samples from a time on."""
        first = next((index for index, at in enumerate(self.times) if at >= seconds), len(self.times))
        return self.times[first:], self.sizes[first:]


class Sampler:
    """Samples memory in a thread from entry to exit. ``series`` is by process id and creation time."""

    def __init__(self, stage: Stage) -> None:
        self.series: dict[tuple[int, float], Series] = {}
        self._stage = stage
        self._began = time.monotonic()
        self._ticker = Ticker(SAMPLE_SECONDS, self._sample)

    def __enter__(self) -> Sampler:
        self._ticker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.__exit__()

    def _sample(self, now: float) -> None:
        for role, process in processes(self._stage):
            with contextlib.suppress(psutil.Error):
                key = (process.pid, process.create_time())
                series = self.series.setdefault(key, Series(role))
                series.times.append(round(now - self._began, 1))
                series.sizes.append(round(process.memory_info().rss / MEBIBYTE, 2))


def processes(stage: Stage) -> Iterator[tuple[str, psutil.Process]]:
    """The running processes of the installation, with their roles."""
    assert stage.driver is not None
    roots = {"driver": stage.driver.pid, "Redis": stage.redis.pid}
    roots |= {f"connector {name}": known.pid for name, known in stage.senders.items()}
    saved = json.loads((stage.cluster / "cluster.json").read_text(encoding="utf-8"))
    roots |= {f"cluster's {daemon['name']}": daemon["pid"] for daemon in saved["daemons"]}
    slots = {known.pid: known.name for known in stage.workers()}
    for role, pid in roots.items():
        if pid is None:
            continue
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            yield role, root
            for child in root.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    yield slots.get(child.pid) or child_role(role, child), child


def child_role(role: str, child: psutil.Process) -> str:
    """The role of a process below the driver or a cluster's worker."""
    if child.name() == "java":
        return f"executor of {role}"
    return f"Python of {role}"


@dataclass(frozen=True)
class Growth:
    """The growth of one process after warm-up."""

    role: str
    """The process's role in the installation."""
    pid: int
    """Its process id."""
    first: float
    """Resident memory after warm-up, in MiB."""
    last: float
    """Resident memory in the last sample, in MiB."""
    slope: float
    """MiB a minute, from the straight line through its samples."""


def growths(series: Mapping[tuple[int, float], Series], warm_up: float, end: float) -> list[Growth]:
    """The growth of the processes that lived most of the time, the fastest first."""
    found = []
    for (pid, _), one in series.items():
        times, sizes = one.after(warm_up)
        if len(times) < 2 or times[-1] - times[0] < PRESENT * (end - warm_up):
            continue
        slope = float(np.polyfit(np.array(times) / 60, np.array(sizes), 1)[0])
        found.append(Growth(one.role, pid, sizes[0], sizes[-1], round(slope, 3)))
    return sorted(found, key=lambda growth: -growth.slope)


def draw_memory(
    series: Mapping[tuple[int, float], Series], judged: Sequence[Growth], warm_up: float, title: str, file: Path
) -> None:
    """Draw the resident memory of the judged processes: Java above, Python and Redis below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (java, rest) = pyplot.subplots(2, 1, figsize=(13, 9), sharex=True, layout="constrained")
    pids = {growth.pid: growth for growth in judged}
    groups: dict[str, list[tuple[int, Series]]] = defaultdict(list)
    for (pid, _), one in series.items():
        if pid in pids:
            groups[one.role].append((pid, one))
    for role, members in sorted(groups.items()):
        for pid, one in members:
            axes: Any = java if is_java(role) else rest
            axes.plot(one.times, one.sizes, linewidth=1.2, label=f"{role} ({pids[pid].slope:+.2f} MiB/min)")
    for axes, name in ((java, "Java"), (rest, "Python and Redis")):
        axes.axvline(warm_up, color="#666666", linestyle="--", linewidth=0.8)
        axes.set_ylabel(f"{name}: resident (MiB)")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    rest.set_xlabel("seconds; growth is judged right of the dashed line")
    figure.suptitle(title)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def is_java(role: str) -> bool:
    """Whether a role is played by a Java process."""
    return role == "driver" or role.startswith(("executor of", "cluster's"))
