"""The picture of a run: a panel for each section."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from proving.bench.usage import ROLES

Axes = Any
SHORT = {"fixed 100 B": "100 B", "varied 20-180 B": "20-180\nB", "varied, keys and times": "+ keys,\ntimes"}
COLOURS = dict(zip(ROLES, ("#9e9e9e", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2"), strict=True))


def panels(results: dict[str, Any], file: Path) -> None:
    """Draw a panel for each section; the panel of a section that did not run or failed says so."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(3, 4, figsize=(26, 15), layout="constrained")
    for axes in grid.flat[len(PANELS) :]:
        axes.set_axis_off()
    for axes, (title, section, work) in zip(grid.flat, PANELS, strict=False):
        axes.set_title(title, fontsize=11)
        found = results.get(section)
        if found is None or "error" in found:
            axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes)
            axes.set_axis_off()
            continue
        work(found, axes)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(file, dpi=80)
    pyplot.close(figure)


def _bars(axes: Axes, groups: list[str], series: dict[str, list[float]], colours: list[str] | None = None) -> None:
    width = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(groups))]
        axes.bar(places, values, width, label=name, color=colours[number] if colours else None)
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.legend(fontsize=8)


def _decode(found: Any, axes: Axes) -> None:
    cases = found["cases"]
    groups = list(dict.fromkeys((case["shape"], case["streams"]) for case in cases))
    revisions = list(dict.fromkeys(case["revision"] for case in cases))
    value = {(case["shape"], case["streams"], case["revision"]): case["median"] / 1e6 for case in cases}
    labels = [f"{SHORT.get(shape, shape)}\n{streams} str." for shape, streams in groups]
    _bars(axes, labels, {name: [value[(*group, name)] for group in groups] for name in revisions})
    axes.axhline(3, color="#d62728", linestyle="--", linewidth=0.9)
    axes.axhline(6, color="#2ca02c", linestyle="--", linewidth=0.9)
    axes.set_ylabel("million messages a second of processor time")


def _sdk(found: Any, axes: Axes) -> None:
    ways = list(dict.fromkeys(case["way"] for case in found["cases"]))
    revisions = list(dict.fromkeys(case["revision"] for case in found["cases"]))
    value = {(case["way"], case["revision"]): case["clock"]["median"] / 1e6 for case in found["cases"]}
    _bars(axes, ways, {name: [value[way, name] for way in ways] for name in revisions})
    axes.axhline(0.5, color="#d62728", linestyle="--", linewidth=0.9)
    axes.axhline(1, color="#2ca02c", linestyle="--", linewidth=0.9)
    axes.set_ylabel("million messages a second")


def _rates(found: Any, axes: Axes) -> None:
    cases = found["cases"]
    groups = [f"{one['size']}\n{one['sink']}" for one in cases]
    rates = {
        name: [one[key]["messages_per_second"]["median"] / 1e6 for one in cases]
        for name, key in (("from a connector", "run"), ("ceiling", "ceiling"))
    }
    _bars(axes, groups, rates, ["#1f77b4", "#bbbbbb"])
    for at, one in enumerate(cases):
        axes.text(
            at - 0.2, rates["from a connector"][at], f"{one['rate_of_ceiling'] or 0:.2f}", ha="center", va="bottom"
        )
    axes.set_ylabel("million messages a second; share of the ceiling")


def _cpu(found: Any, axes: Axes) -> None:
    columns = []
    for one in found["cases"]:
        columns.append((f"{one['size']}\n{one['sink']}", one["run"]["cpu_seconds_per_million"]))
        columns.append(("ceiling", one["ceiling"]["cpu_seconds_per_million"]))
    columns.append(("100 B\nnoop\nSDK", found["sdk"]["cpu_seconds_per_million"]))
    bottom = [0.0] * len(columns)
    for role in ROLES:
        heights = [by_role.get(role, 0.0) for _, by_role in columns]
        axes.bar(range(len(columns)), heights, bottom=bottom, label=role, color=COLOURS[role])
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(columns)), [name for name, _ in columns], fontsize=8)
    axes.legend(fontsize=8)
    axes.set_ylabel("CPU seconds a million messages")


def _latency(found: Any, axes: Axes) -> None:
    loads = found["loads"]
    series = {name: [1000 * one[name] for one in loads] for name in ("p50", "p99", "p99.9")}
    _bars(axes, [f"{one['load']:.0%}\n{one['rate'] / 1e3:,.0f} k/s" for one in loads], series)
    for (name, one), style in zip(found["bare_ms"].items(), (":", "--"), strict=False):
        axes.axhline(one["median"], color="#333333", linestyle=style, label=f"micro-batch: {name}")
    axes.set_ylim(top=1.4 * max(series["p99.9"]))
    axes.legend(fontsize=8, ncols=2, loc="upper center")
    axes.set_ylabel("ms from due to acknowledged")


def _connectors(found: Any, axes: Axes) -> None:
    _growth([one for one in found["connectors"] if "error" not in one], "connectors", axes)


def _streams(found: Any, axes: Axes) -> None:
    kept = [one for one in found["streams"] if "error" not in one]
    _growth(kept, "streams", axes)
    other = axes.twinx()
    other.plot([one["streams"] for one in kept], [one["offsets_bytes"] / 1024 for one in kept], "k:", marker="x")
    other.set_ylabel("KiB of offsets/N (dotted)")
    other.set_yscale("log")


def _growth(kept: list[Any], name: str, axes: Axes) -> None:
    for role in ("worker", "reading tasks", "JVM", "planner", "driver"):
        values = [one["cpu_seconds_per_million"].get(role, 0.0) for one in kept]
        axes.plot([one[name] for one in kept], values, marker="o", label=role, color=COLOURS[role])
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(name)
    axes.set_ylabel("CPU seconds a million messages")
    axes.legend(fontsize=8)


def _memory(found: Any, axes: Axes) -> None:
    times = [time for time, _, _ in found["samples"]]
    axes.plot(times, [rss for _, rss, _ in found["samples"]], label="resident", color="#1f77b4")
    axes.plot(times, [used for _, _, used in found["samples"]], label="counted as buffered", color="#2ca02c")
    axes.axhline(found["budget_MiB"], color="#333333", linestyle="--", label="budget")
    axes.axhline(found["budget_MiB"] + 150e6 / (1 << 20), color="#d62728", linestyle="--", label="budget + 150 MB")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB of the worker")
    axes.legend(fontsize=8)


def _credits(found: Any, axes: Axes) -> None:
    cases = found["cases"]
    held = {credits: [one[credits]["mean_MiB"] for one in cases] for credits in ("fixed", "adaptive")}
    _bars(axes, [one["load"].replace(", ", ",\n") for one in cases], held, ["#bbbbbb", "#1f77b4"])
    for at, one in enumerate(cases):
        rate = one["adaptive"]["MiB_per_second"] / one["fixed"]["MiB_per_second"]
        axes.text(at + 0.2, one["adaptive"]["mean_MiB"], f"{rate:.2f}", ha="center", va="bottom", fontsize=8)
    axes.tick_params(axis="x", rotation=60, labelsize=7)
    axes.set_ylabel("mean MiB in the buffer; throughput as a share of the fixed window's")


def _leaving(found: Any, axes: Axes) -> None:
    """Rows a second of each sink beside its reference, Spark's own Parquet or noop."""
    rates = {
        one["sink"]: (one["rows_per_second"]["median"], one["of_plain_parquet"])
        for one in found["sinks"]
        if "error" not in one
    }
    rates["pubsub"] = (found["pubsub"]["rows_per_second"], found["pubsub"]["of_noop"])
    series = {
        "exactly once": [rate / 1e6 for rate, _ in rates.values()],
        "Spark's own Parquet (pubsub: noop)": [rate / share / 1e6 for rate, share in rates.values()],
    }
    _bars(axes, list(rates), series, ["#1f77b4", "#bbbbbb"])
    for at, (rate, share) in enumerate(rates.values()):
        axes.text(at - 0.2, rate / 1e6, f"{share:.2f}", ha="center", va="bottom", fontsize=8)
    axes.set_ylabel("million rows a second; ratio to the reference")


def _kafka(found: Any, axes: Axes) -> None:
    """CPU seconds a million messages of everything, Kafka's chain and this one."""
    labels = [
        f"{case['size']} B,\n{case['rate'] / 1000:.0f} k/s" if case["rate"] else f"{case['size']} B,\nmost"
        for case in found["cases"]
    ]
    series = {
        label: [sum(case[name]["cpu_seconds_per_million"].values()) for case in found["cases"]]
        for label, name in (("Kafka", "kafka"), ("this, Python SDK", "SDK"), ("this, encoded ahead", "encoded"))
    }
    _bars(axes, labels, series, ["#d62728", "#1f77b4", "#9ecae1"])
    axes.set_ylabel("CPU seconds a million messages")


PANELS: tuple[tuple[str, str, Callable[[Any, Axes], None]], ...] = (
    ("Decoding (dashed: goal, aim)", "decode", _decode),
    ("One Python connector, 100 B (dashed: goal, aim)", "sdk", _sdk),
    ("End to end", "e2e", _rates),
    ("Processor time by process", "e2e", _cpu),
    ("Latency", "latency", _latency),
    ("More connectors, same rate", "fanin", _connectors),
    ("More streams, same rate", "fanin", _streams),
    ("Memory of a worker whose query is paused", "memory", _memory),
    ("Credits, simulated loads", "credits", _credits),
    ("Out of Spark", "leaving", _leaving),
    ("Kafka's chain beside this one, into noop", "kafka", _kafka),
)
