"""The pictures of a run: each shows one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proving.bench.results.figures import amount
from proving.bench.results.goals import GOALS, goals_of
from proving.bench.results.report import PARTS
from proving.bench.usage import ROLES

Axes = Any
Figure = Any
Results = dict[str, Any]

OURS, OTHER, GOAL, AIM = "#1f77b4", "#b0b0b0", "#d62728", "#2ca02c"
COLOURS = dict(zip(ROLES, ("#9e9e9e", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2"), strict=True))
SERIES = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#7f7f7f", "#d62728")
DOTS_AN_INCH = 100


@dataclass(frozen=True)
class Picture:
    """One picture."""

    name: str
    """The name of its file, without ``.png``."""
    title: str
    """The title above it, and the text in place of it."""
    sections: tuple[str, ...]
    """The sections that it shows."""
    draw: Callable[[Results, Figure], None]
    """Draws it from the figures of all sections."""
    size: tuple[float, float] = (9.0, 4.5)
    """Width and height in inches."""


def draw_all(results: Results, directory: Path) -> list[Path]:
    """Write each picture; that of a section that did not run, or failed, says so. Returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for picture in PICTURES:
        figure = pyplot.figure(figsize=picture.size, layout="constrained")
        figure.suptitle(picture.title, fontsize=13)
        missing = [name for name in picture.sections if "error" in results.get(name, {"error": "not run"})]
        if missing:
            figure.text(0.5, 0.5, f"This run has no figures of {', '.join(missing)}.", ha="center", fontsize=12)
        else:
            picture.draw(results, figure)
        files.append(directory / f"{picture.name}.png")
        figure.savefig(files[-1], dpi=DOTS_AN_INCH)
        pyplot.close(figure)
    return files


def _axes(figure: Figure, label: str = "") -> Axes:
    axes = figure.subplots()
    _plain(axes, label)
    return axes


def _plain(axes: Axes, label: str = "") -> None:
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(
    axes: Axes,
    groups: Sequence[str],
    series: dict[str, list[float]],
    colours: Sequence[str] = SERIES,
    *,
    labels: bool = True,
) -> None:
    """Bars of several series side by side in each group, each with its figure above it."""
    width = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(groups))]
        bars = axes.bar(places, values, 0.94 * width, label=name, color=colours[number])
        if labels:
            axes.bar_label(bars, [amount(value) for value in values], fontsize=8, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.legend(fontsize=9, frameon=False)
    axes.margins(y=0.15)


def _goal_lines(axes: Axes, key: str, scale: float = 1.0) -> None:
    """The goal and the aim of a figure, as lines over the whole width."""
    goal = next(one for one in GOALS if one.key == key)
    for name, value, colour in (("goal", goal.limit, GOAL), ("aim", goal.aim, AIM)):
        axes.axhline(scale * value, color=colour, linestyle="--", linewidth=1, label=name)
    axes.legend(fontsize=9, frameon=False)


def _steps(axes: Axes, places: Iterable[float], label: str) -> None:
    """A logarithmic axis of counts, labelled at the measured counts."""
    marks = sorted(set(places))
    axes.set_xscale("log")
    axes.set_xticks(marks, [f"{mark:,.0f}" for mark in marks])
    axes.minorticks_off()
    axes.set_xlabel(label)


def _throughput(results: Results, figure: Figure) -> None:
    axes, cases = _axes(figure, "MB of payload a second"), results["e2e"]["cases"]
    groups = [f"{one['size']} into {one['sink']}\n{one['rate_of_ceiling'] or 0:.2f} of the ceiling" for one in cases]
    series = {
        "from a connector": [one["run"]["megabytes_per_second"] for one in cases],
        "ceiling: rows made in the task": [one["ceiling"]["megabytes_per_second"] for one in cases],
    }
    _bars(axes, groups, series, (OURS, OTHER))
    axes.tick_params(axis="x", labelsize=8)


def _processor_time(results: Results, figure: Figure) -> None:
    found = results["e2e"]
    sizes = list(dict.fromkeys(one["size"] for one in found["cases"]))
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        one = next(case for case in found["cases"] if (case["size"], case["sink"]) == (size, "noop"))
        columns = {"encoded\nahead": one["run"], "ceiling": one["ceiling"]}
        if size == "100 B":
            columns = {"encoded\nahead": one["run"], "SDK": found["sdk"], "ceiling": one["ceiling"]}
        _stacked(axes, {name: column["cpu_seconds_per_million"] for name, column in columns.items()})
        axes.set_title(size, fontsize=10)
        axes.set_ylabel("CPU seconds a million messages")
    axes.legend(fontsize=8, frameon=False, loc="upper right")


def _stacked(axes: Axes, columns: dict[str, dict[str, float]]) -> None:
    _plain(axes)
    bottom = [0.0] * len(columns)
    for role in ROLES:
        heights = [by_role.get(role, 0.0) for by_role in columns.values()]
        axes.bar(range(len(columns)), heights, 0.6, bottom=bottom, label=role, color=COLOURS[role])
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(columns)), list(columns))
    axes.margins(y=0.1)


def _latency(results: Results, figure: Figure) -> None:
    axes, loads = _axes(figure, "ms from due to acknowledged"), results["latency"]["loads"]
    groups = [f"{one['load']:.0%} of the load\n{amount(one['rate'])} msg/s" for one in loads]
    _bars(axes, groups, {name: [1000 * one[name] for one in loads] for name in ("p50", "p99", "p99.9")})
    bounds = {goal.key: goal for goal in GOALS}
    for at, one in enumerate(loads):
        goal = bounds.get(f"p50_{round(100 * one['load'])}")
        if goal is not None:
            for name, value, colour in (("goal for p50", goal.limit, GOAL), ("aim for p50", goal.aim, AIM)):
                axes.hlines(value, at - 0.42, at - 0.12, color=colour, linewidth=2, label="" if at else name)
    axes.legend(fontsize=9, frameon=False, loc="upper left")


def _batch(results: Results, figure: Figure) -> None:
    axes, found = figure.subplots(), results["latency"]
    batches = {**found["bare_ms"], **{f"{one['load']:.0%} of the load": one for one in found["loads"]}}
    shown = [part for part in PARTS if part != "triggerExecution"]
    left = [0.0] * len(batches)
    for part, colour in zip(shown, ("#17becf", "#9467bd", "#ff7f0e", OURS, "#8c564b"), strict=True):
        widths = [one["parts_ms"].get(part, 0.0) for one in batches.values()]
        axes.barh(range(len(batches)), widths, 0.6, left=left, label=PARTS[part], color=colour)
        left = [low + width for low, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(batches)), list(batches))
    axes.invert_yaxis()
    axes.set_xlabel("ms, medians")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)


def _planning(results: Results, figure: Figure) -> None:
    cases = results["plans"]["cases"]
    known, active = (sorted({one[name] for one in cases}) for name in ("known", "active"))
    left, right, size = figure.subplots(1, 3)
    for number, count in enumerate(active):
        kept = [one for one in cases if one["active"] == count]
        for axes, name, scale in ((left, "plan_ms", 1), (size, "offset_bytes", 1e-3)):
            axes.plot(
                [one["known"] for one in kept],
                [scale * one[name] for one in kept],
                marker="o",
                label=f"{count:,} active",
                color=SERIES[number],
            )
    for number, count in enumerate(known):
        kept = [one for one in cases if one["known"] == count]
        right.plot(
            [one["active"] for one in kept],
            [one["plan_ms"] for one in kept],
            marker="o",
            label=f"{count:,} known",
            color=SERIES[number],
        )
    for axes, title, label, places, key in (
        (left, "against known streams", "ms of latestOffset", known, "plan_ms"),
        (right, "against active streams", "ms of latestOffset", active, "plan_ms"),
        (size, "against known streams", "kB of offsets/N", known, "plan_kb"),
    ):
        _plain(axes, label)
        axes.set_title(title, fontsize=10)
        _steps(axes, places, "active streams" if places is active else "known streams")
        axes.tick_params(axis="x", labelsize=8)
        _goal_lines(axes, key)
        axes.legend(fontsize=9, frameon=False, loc="center right")
        axes.margins(y=0.25)
        axes.set_ylim(bottom=0)


def _streams(results: Results, figure: Figure) -> None:
    axes = _axes(figure, "CPU seconds a million messages")
    cases = [one for one in results["active"]["cases"] if one["sessions"] == 1]
    names = {"receive": "receiving", "plan": "planning", "find": "finding", "gather": "gathering", "commit": "commit"}
    bottom = [0.0] * len(cases)
    for number, (phase, label) in enumerate(names.items()):
        heights = [one["by_phase"].get(phase, 0.0) for one in cases]
        axes.bar(range(len(cases)), heights, 0.6, bottom=bottom, label=label, color=SERIES[number])
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for at, one in enumerate(cases):
        axes.text(at, bottom[at], f" {amount(one['messages_per_second'])} msg/s", ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(cases)), [f"{one['streams']:,}" for one in cases])
    axes.set_xlabel("active streams of one worker")
    axes.margins(y=0.1)
    axes.legend(fontsize=9, frameon=False, loc="upper left")


def _growth(results: Results, figure: Figure) -> None:
    for axes, name in zip(figure.subplots(1, 2), ("connectors", "streams"), strict=True):
        kept = [one for one in results["fanin"][name] if "error" not in one]
        _plain(axes, "CPU seconds a million messages")
        for role in ("worker", "reading tasks", "JVM", "planner", "driver"):
            values = [one["cpu_seconds_per_million"].get(role, 0.0) for one in kept]
            axes.plot([one[name] for one in kept], values, marker="o", label=role, color=COLOURS[role])
        _steps(axes, [one[name] for one in kept], "connectors" if name == "connectors" else "streams of ten connectors")
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=9, frameon=False, loc="upper left")


def _sessions(results: Results, figure: Figure) -> None:
    cases = results["sessions"]["cases"]
    counts = sorted({one["sessions"] for one in cases})
    revisions = list(dict.fromkeys(one["revision"] for one in cases))
    of = {(one["revision"], one["sessions"]): one for one in cases}
    for axes, name, label, key in zip(
        figure.subplots(1, 2),
        ("KiB_a_session", "cores"),
        ("resident KiB of a quiet session", f"cores of the worker, {amount(results['sessions']['rate'])} msg/s in all"),
        ("session", "sessions"),
        strict=True,
    ):
        _plain(axes, label)
        series = {revision: [of[revision, count][name] for count in counts] for revision in revisions}
        _bars(axes, [f"{count:,}\nsessions" for count in counts], series)
        _goal_lines(axes, key)
        axes.margins(y=0.35)
        axes.legend(fontsize=9, frameon=False, ncols=2, loc="upper center")


def _kafka(results: Results, figure: Figure) -> None:
    sides = {"Kafka and its source": "kafka", "this, Python SDK": "SDK", "this, encoded ahead": "encoded"}
    cases = results["kafka"]["cases"]
    groups = [
        f"{case['size']} B\n{amount(case['rate'])} msg/s" if case["rate"] else f"{case['size']} B\nmost"
        for case in cases
    ]
    cpu, rate = figure.subplots(1, 2)
    _plain(cpu, "CPU seconds a million messages, of everything")
    _plain(rate, "MB of payload a second")
    colours = (GOAL, OURS, "#9ecae1")
    series = {
        label: [sum(case[name]["cpu_seconds_per_million"].values()) for case in cases] for label, name in sides.items()
    }
    _bars(cpu, groups, series, colours)
    full = [case for case in cases if not case["rate"]]
    series = {
        label: [case["size"] * case[name]["messages_per_second"] / 1e6 for case in full]
        for label, name in sides.items()
    }
    _bars(rate, [f"{case['size']} B\nmost" for case in full], series, colours)
    cpu.get_legend().remove()


def _memory(results: Results, figure: Figure) -> None:
    found, axes = results["memory"], _axes(figure, "MiB of the worker")
    times = [time for time, _, _ in found["samples"]]
    axes.plot(times, [rss for _, rss, _ in found["samples"]], label="resident", color=OURS)
    axes.plot(times, [used for _, _, used in found["samples"]], label="counted as buffered", color=AIM)
    axes.axhline(found["budget_MiB"], color="#333333", linestyle="--", label="memoryBudget")
    goal = next(one for one in GOALS if one.key == "memory").limit
    axes.axhline(found["budget_MiB"] + goal * 1e6 / (1 << 20), color=GOAL, linestyle="--", label="goal")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.legend(fontsize=9, frameon=False, loc="lower right")


def _decode(results: Results, figure: Figure) -> None:
    axes, cases = _axes(figure, "million messages a second of processor time"), results["decode"]["cases"]
    groups = list(dict.fromkeys((case["shape"], case["streams"]) for case in cases))
    revisions = list(dict.fromkeys(case["revision"] for case in cases))
    value = {(case["shape"], case["streams"], case["revision"]): case["median"] / 1e6 for case in cases}
    labels = [shape.replace(", ", ",\n") + f"\n{count} stream" + ("s" if count > 1 else "") for shape, count in groups]
    series = {name: [value[(*group, name)] for group in groups] for name in revisions}
    _bars(axes, labels, series, labels=False)
    axes.tick_params(axis="x", labelsize=8)
    _goal_lines(axes, "decode", 1e-6)


def _sdk(results: Results, figure: Figure) -> None:
    axes, cases = _axes(figure, "thousand messages a second, by the clock"), results["sdk"]["cases"]
    ways = list(dict.fromkeys(case["way"] for case in cases))
    revisions = list(dict.fromkeys(case["revision"] for case in cases))
    value = {(case["way"], case["revision"]): case["clock"]["median"] / 1e3 for case in cases}
    _bars(axes, ways, {name: [value[way, name] for way in ways] for name in revisions})
    for at, key in ((0, "send"), (1, "sdk")):
        goal = next(one for one in GOALS if one.key == key)
        for name, bound, colour in (("goal", goal.limit, GOAL), ("aim", goal.aim, AIM)):
            axes.hlines(bound / 1e3, at - 0.45, at + 0.45, color=colour, linewidth=2, label="" if at else name)
    axes.legend(fontsize=9, frameon=False)


def _fleet(results: Results, figure: Figure) -> None:
    axes, cases = _axes(figure, "ms a batch"), results["fleet"]["cases"]
    groups = [f"{one['slots']} slot{'s' if one['slots'] > 1 else ''}\n{one['known']:,} known each" for one in cases]
    series = {
        "planning, all workers on this machine": [one["plan_ms"] for one in cases],
        "processor time of the planner alone": [one["plan_cpu_ms"] for one in cases],
    }
    _bars(axes, groups, series, (OURS, OTHER))
    _goal_lines(axes, "fleet")


def _credits(results: Results, figure: Figure) -> None:
    cases = results["credits"]["cases"]
    for axes, name, label in zip(
        figure.subplots(1, 3, sharey=True),
        ("mean_MiB", "p50_seconds", "MiB_per_second"),
        ("mean MiB in the buffer", "p50 to ACK, s", "MiB a second"),
        strict=True,
    ):
        for number, (credits, colour) in enumerate((("fixed", OTHER), ("adaptive", OURS))):
            places = [at + 0.4 * (number - 0.5) for at in range(len(cases))]
            values = [one[credits][name] for one in cases]
            axes.barh(places, values, 0.38, label=f"{credits} credits", color=colour)
        axes.set_yticks(range(len(cases)), [one["load"] for one in cases])
        axes.set_xlabel(label)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    axes.legend(fontsize=9, frameon=False, loc="lower right")


def _leaving(results: Results, figure: Figure) -> None:
    found, axes = results["leaving"], _axes(figure, "thousand rows a second")
    rates = {
        one["sink"]: (one["rows_per_second"]["median"], one["of_plain_parquet"])
        for one in found["sinks"]
        if "error" not in one
    }
    rates["publish-\nsubscribe"] = (found["pubsub"]["rows_per_second"], found["pubsub"]["of_noop"])
    series = {
        "exactly once": [rate / 1e3 for rate, _ in rates.values()],
        "Spark's own Parquet in the same minute (publish-subscribe: noop)": [
            rate / share / 1e3 for rate, share in rates.values()
        ],
    }
    _bars(axes, list(rates), series, (OURS, OTHER))


def _goals(results: Results, figure: Figure) -> None:
    """Each measured figure as a multiple of its goal, at most ten times, on a logarithmic axis."""
    axes, found = figure.subplots(), goals_of(results)
    kept = [(goal, value) for goal in GOALS if (value := found[goal.key])]
    colours = {"aim met": AIM, "met": OURS, "missed": GOAL}
    for at, (goal, value) in enumerate(kept):
        ratio = value / goal.limit if goal.more else goal.limit / value
        aim = goal.aim / goal.limit if goal.more else goal.limit / goal.aim
        ratio = min(max(ratio, 0.1), 10)
        axes.plot([1, ratio], [at, at], color=colours[goal.says(value)], linewidth=5, solid_capstyle="butt")
        axes.plot([aim], [at], marker="|", color="#333333", markersize=11)
        axes.text(max(ratio, aim) * 1.08, at, f"{amount(value)} {goal.unit}", va="center", fontsize=8)
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.09, 25)
    axes.set_yticks(range(len(kept)), [goal.description.replace("`", "") for goal, _ in kept], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("multiples of the goal; red: missed, blue: met, green: aim met; mark: aim")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


PICTURES = (
    Picture("goals", "The figures against their goals", (), _goals, (9, 7)),
    Picture("throughput", "Throughput beside the ceiling", ("e2e",), _throughput, (10, 4.5)),
    Picture("processor-time", "Processor time by process, into noop", ("e2e",), _processor_time, (10, 4.5)),
    Picture("latency", "From due to acknowledged", ("latency",), _latency),
    Picture("micro-batch", "Where the time of a micro-batch goes", ("latency",), _batch, (9, 3.5)),
    Picture("planning", "Planning a batch: known and active streams", ("plans",), _planning, (12, 4.5)),
    Picture("active-streams", "Processor time of a worker by active streams", ("active",), _streams),
    Picture("growth", "The same rate over more connectors and more streams", ("fanin",), _growth, (10, 4.5)),
    Picture("fleet", "Planning a batch: slots", ("fleet",), _fleet, (10, 4.5)),
    Picture("sessions", "Many sessions on one worker", ("sessions",), _sessions, (10, 4.5)),
    Picture("kafka", "Kafka's chain beside this one, into noop", ("kafka",), _kafka, (11, 4.5)),
    Picture("memory", "Memory of a worker whose query is paused", ("memory",), _memory),
    Picture("decode", "Decoding on one core", ("decode",), _decode, (11, 4.5)),
    Picture("sdk", "One Python connector, 100 B", ("sdk",), _sdk),
    Picture("credits", "Fixed and adaptive credits, simulated loads", ("credits",), _credits, (11, 5)),
    Picture("leaving", "Rows out of Spark", ("leaving",), _leaving),
)
"""All pictures, in the order of the page."""
