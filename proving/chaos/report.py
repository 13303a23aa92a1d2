"""The figures of a run and their picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from proving.chaos.faults import WITH_STANDBY, Blow
from proving.chaos.judge import Written
from proving.chaos.schedule import Kind

COLOURS = {
    Kind.CONNECTOR: "#1b9e77",
    Kind.WORKER: "#d95f02",
    Kind.EXECUTOR: "#7570b3",
    Kind.DRIVER: "#e7298a",
    Kind.REDIS: "#a6761d",
    Kind.FLUSH: "#e6ab02",
    Kind.STOP: "#666666",
    Kind.STOP_FOR_GOOD: "#000000",
}
AGE_STEP = 0.5


class Found(Protocol):
    """What a comparison of the committed rows with the sent messages has found."""

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""

    @property
    def title(self) -> str:
        """The counts in a line."""

    @property
    def lines(self) -> list[str]:
        """The counts for a person."""

    def to_json(self) -> dict[str, Any]:
        """The counts by their names."""


@dataclass(frozen=True)
class Sent:
    """The messages of one stream in the order of sending. Times are seconds of the wall clock."""

    name: str
    """The name of the stream."""
    due: NDArray[np.float64]
    """When each is due."""
    answered: NDArray[np.float64]
    """When its sender saw that it is committed; infinite where it did not."""
    given_up: NDArray[np.bool_]
    """Whether its sender has given it up."""


@dataclass(frozen=True)
class DriverWait:
    """What followed the kill of a driver."""

    standby: bool
    """Whether a standby waited."""
    commit: float
    """Seconds to the next commit."""
    answer: float
    """Seconds to the next answer that a sender saw."""


@dataclass(frozen=True)
class Run:
    """The results of a run. Times are seconds of the wall clock."""

    seed: int
    """The seed of the schedule."""
    began: float
    """When sending began."""
    ended: float
    """When the run was over."""
    sent: Mapping[str, Sequence[Sent]]
    """What each sender has sent."""
    blows: Sequence[Blow]
    """The faults that were carried out."""
    verdict: Found
    """The counts of the comparison."""
    written: Written
    """The committed rows and the time of each commit."""
    starts: Mapping[str, int]
    """How often each program was started, by its name."""
    failures: Mapping[str, Sequence[int]]
    """Exit statuses that no SIGKILL explains, by the program's name."""
    complete: bool
    """Whether everything was acknowledged in time."""

    @property
    def last_fault(self) -> float:
        """The time at which the last fault was over."""
        return max((blow.until for blow in self.blows), default=self.began)

    def advances(self) -> dict[str, float | None]:
        """Seconds from the last fault to each stream's next acknowledgement; None where none followed. Streams that
        were acknowledged to their end before the last fault are left out.
        """
        found: dict[str, float | None] = {}
        for stream in (stream for streams in self.sent.values() for stream in streams):
            over = (stream.answered <= self.last_fault) | (stream.given_up & (stream.due <= self.last_fault))
            if not over.all():
                later = stream.answered[stream.answered > self.last_fault].min(initial=np.inf)
                found[stream.name] = round(float(later) - self.last_fault, 2) if np.isfinite(later) else None
        return found

    def driver_waits(self) -> list[DriverWait]:
        """The waits after each kill of a driver that was followed by a commit and an answer."""
        answered = np.sort(np.concatenate([stream.answered for one in self.sent.values() for stream in one]))
        commits = np.sort(np.array([*self.written.commits.values()]))
        found = []
        for blow in self.blows:
            if blow.fault.kind is Kind.DRIVER and blow.hit:
                waits = [
                    float(times[times > blow.time].min(initial=np.inf)) - blow.time for times in (commits, answered)
                ]
                if np.isfinite(waits).all():
                    found.append(DriverWait(blow.hit.endswith(WITH_STANDBY), *(round(wait, 1) for wait in waits)))
        return found

    def to_json(self) -> dict[str, Any]:
        """The figures and the schedule."""
        waits = self.advances()
        return {
            "seed": self.seed,
            "seconds": round(self.ended - self.began, 1),
            "complete": self.complete,
            "counts": self.verdict.to_json(),
            "kills": sum(blow.kills for blow in self.blows),
            "faults": {kind.value: sum(b.fault.kind is kind and bool(b.hit) for b in self.blows) for kind in Kind},
            "batches": len(self.written.commits),
            "acknowledgements": sum(
                len(np.unique(stream.answered[np.isfinite(stream.answered)]))
                for streams in self.sent.values()
                for stream in streams
            ),
            "waits_after_kills_of_drivers": [asdict(one) for one in self.driver_waits()],
            "longest_wait_after_last_fault": _longest(waits),
            "waits_after_last_fault": waits,
            "starts": dict(self.starts),
            "ends_that_no_kill_explains": {name: list(ends) for name, ends in self.failures.items() if ends},
            "schedule": [blow.to_json() for blow in self.blows],
        }


def _longest(waits: Mapping[str, float | None]) -> float | None:
    known = [wait for wait in waits.values() if wait is not None]
    return None if len(known) < len(waits) else max(known, default=0.0)


def throughput(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Messages committed in each second of the run."""
    batches, counts = np.unique(run.written.rows["batch"].to_numpy(), return_counts=True)
    # The last batches have no commit when the run ended before it.
    known = np.array([int(batch) in run.written.commits for batch in batches], dtype=bool)
    times = [run.written.commits[int(batch)] - run.began for batch in batches[known]]
    edges = np.arange(0.0, run.ended - run.began + 2)
    values, _ = np.histogram(times, bins=edges, weights=counts[known])
    return edges[:-1], values.astype(np.float64)


def ages(run: Run, streams: Sequence[Sent]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each moment, how long the oldest unacknowledged message of any of these streams has been due."""
    moments = np.arange(0.0, run.ended - run.began + AGE_STEP, AGE_STEP)
    worst = np.zeros(len(moments))
    for stream in streams:
        done = np.maximum.accumulate(np.where(stream.given_up, -np.inf, stream.answered))
        oldest = np.searchsorted(done, run.began + moments, side="right")
        due = np.append(stream.due, np.inf)[oldest]
        worst = np.maximum(worst, run.began + moments - due)
    return moments, worst


def write_json(run: Run, file: Path) -> None:
    """Write the figures into a file."""
    file.write_text(json.dumps(run.to_json(), indent=2) + "\n", encoding="utf-8")


def draw_timeline(run: Run, file: Path) -> None:
    """Draw faults, throughput and the age of the oldest unacknowledged record over one axis of time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (marks, rate, age) = pyplot.subplots(
        3, 1, figsize=(14, 9), sharex=True, height_ratios=(2, 3, 3.5), layout="constrained"
    )
    _draw_marks(run, marks)
    moments, values = throughput(run)
    rate.fill_between(moments, values, step="post", color="#9ecae1", label="each second")
    width = min(10, len(values))
    smooth = np.convolve(values, np.ones(width) / width, mode="same")
    rate.plot(moments, smooth, color="#08519c", linewidth=1.5, label=f"mean of {width} s")
    rate.set_ylabel("messages committed / s")
    rate.legend(loc="upper left", fontsize=8)
    for number, (name, streams) in enumerate(sorted(run.sent.items())):
        age.plot(*ages(run, streams), linewidth=1.2, label=name, linestyle="-" if number < 10 else "--")
    age.set_ylabel("age of the oldest\nunacknowledged record (s)")
    age.set_xlabel("seconds since sending began")
    age.legend(loc="upper left", ncols=3, fontsize=8)
    for blow in run.blows:
        for axes in (rate, age):
            axes.axvline(blow.time - run.began, color=COLOURS[blow.fault.kind], linewidth=0.8, alpha=0.6)
    for axes in (rate, age):
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
    age.set_xlim(0, run.ended - run.began)
    figure.suptitle(f"{sum(blow.kills for blow in run.blows)} kills (seed {run.seed}). {run.verdict.title}")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _draw_marks(run: Run, axes: Any) -> None:
    rows = [kind for kind in reversed(Kind) if any(blow.fault.kind is kind for blow in run.blows)]
    for blow in run.blows:
        if not blow.hit:
            continue
        row, start = rows.index(blow.fault.kind), blow.time - run.began
        colour = COLOURS[blow.fault.kind]
        axes.plot([start, blow.until - run.began], [row, row], color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot(start, row, marker="X" if blow.kills else "o", color=colour, markersize=8)
    axes.set_yticks(range(len(rows)), [kind.value for kind in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(axis="y", alpha=0.3)
