"""The goals of a run, and the measured figure of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proving.bench.results.figures import amount, table
from proving.bench.sections import active, decode, sdk, sessions

Results = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """The goal of a figure: at least ``limit`` (at most, unless ``more``), better ``aim``."""

    key: str
    """Its key in ``bench.json``."""
    description: str
    """The measured figure in words."""
    unit: str
    """The unit of the figure."""
    limit: float
    """The bound that the figure must meet."""
    aim: float
    """The better bound that the work aims at."""
    more: bool = True
    """Whether higher figures are better."""
    section: str = ""
    """The section that measures it."""

    def says(self, value: float | None) -> str:
        """The verdict on a measured value."""
        if value is None or math.isnan(value):
            return "not measured"
        if self._holds(value, self.aim):
            return "aim met"
        return "met" if self._holds(value, self.limit) else "missed"

    def _holds(self, value: float, bound: float) -> bool:
        return value >= bound if self.more else value <= bound

    @property
    def bounds(self) -> str:
        """Limit and aim as text."""
        sign = "≥" if self.more else "≤"
        return f"{sign} {amount(self.limit)} (aim {amount(self.aim)}) {self.unit}".rstrip()


GOALS = (
    Goal("p50_10", "p50 from due to acknowledged, 10 % of the load", "ms", 120, 80, False, "latency"),
    Goal("p50_50", "p50 from due to acknowledged, 50 % of the load", "ms", 200, 150, False, "latency"),
    Goal("p50_80", "p50 from due to acknowledged, 80 % of the load", "ms", 400, 300, False, "latency"),
    Goal("lone", "one message at a time, p50 to its ACK, of its own batch", "x", 1.2, 1.05, False, "latency"),
    Goal("ceiling_100", "100 B into noop, of the ceiling", "x", 0.95, 1.0, True, "e2e"),
    Goal("ceiling_1k", "1 KB into noop, of the ceiling", "x", 0.75, 0.9, True, "e2e"),
    Goal("kafka_100", "CPU of Kafka's chain, 100 B, SDK included", "x", 0.3, 0.2, False, "kafka"),
    Goal("kafka_1k", "CPU of Kafka's chain, 1 KB, SDK included", "x", 0.3, 0.2, False, "kafka"),
    Goal("plan_ms", "1,000,000 known streams, 10,000 active: latestOffset", "ms", 50, 20, False, "plans"),
    Goal("plan_kb", "1,000,000 known streams, 10,000 active: offsets/N", "KB", 64, 64, False, "plans"),
    Goal("fleet", "64 slots × 10,000 known, 100 active each: planning", "ms", 100, 30, False, "fleet"),
    Goal("fleet_256", "256 slots × 1,000 known, 100 active each: planning", "ms", 300, 100, False, "fleet"),
    Goal("tell", "64 slots × 10,000 known, 100 active each: telling", "ms", 50, 20, False, "fleet"),
    Goal("active", "10,000 active streams, ten messages each a batch", "msg/s a core", 2.5e5, 5e5, True, "active"),
    Goal("active_spark", "10,000 active streams, end to end", "msg/s", 3e5, 5e5, True, "fanin"),
    Goal("sessions", "10,000 sessions, a message a second each: worker", "cores", 1, 0.5, False, "sessions"),
    Goal("session", "resident memory of a quiet session, of 10,000", "KiB", 30, 10, False, "sessions"),
    Goal("send", "`send` awaited one by one, 100 B, slowest revision", "msg/s", 1.5e5, 2.5e5, True, "sdk"),
    Goal("decode", "decode, 20-180 B, slowest revision, one stream", "msg/s a core", 3e6, 6e6, True, "decode"),
    Goal("noop_100", "100 B into noop", "msg/s", 1.2e6, 2e6, True, "e2e"),
    Goal("noop_1k", "1 KB into noop", "MB/s", 300, 600, True, "e2e"),
    Goal("cpu", "CPU of worker, task and JVM, 100 B, of the ceiling's", "x", 3, 2, False, "e2e"),
    Goal("latency", "p50 at 50 % of the load, of a bare micro-batch", "x", 2, 1.3, False, "latency"),
    Goal("fanin", "CPU of 1,000 connectors, of 1 at the same rate", "x", 1.3, 1.1, False, "fanin"),
    Goal("sdk", "`send_many`, 100 B, slowest revision", "msg/s", 5e5, 1e6, True, "sdk"),
    Goal("memory", "worker's peak memory above its budget, query paused", "MB", 150, 80, False, "memory"),
    Goal("publish", "durable publish, p50 to the committed offset", "ms", 250, 150, False, "durable"),
    Goal("tiers", "three tiers outside Spark, p50 to the last output", "ms", 1100, 600, False, "durable"),
    Goal("outside", "instances of one tier outside Spark", "/s", 5e3, 2e4, True, "durable"),
    Goal("group", "events of a group with default settings", "/s", 5e3, 5e4, True, "durable"),
    Goal("instances", "instances of one tier inside Spark, two cores", "/s", 2e4, 1e5, True, "durable"),
    Goal("channels", "p99 of a quiet stream over QUIC, 5 % loss, of TCP's", "x", 0.5, 0.3, False, "channels"),
    Goal("door_java", "one Java Kafka producer, defaults, 100 B", "MB/s", 10, 50, True, "doors"),
    Goal("door_confluent", "one confluent-kafka producer, defaults, 100 B", "/s", 2e5, 5e5, True, "doors"),
    Goal("door_of_kafka", "CPU of Kafka's chain, the same producer, 100 B", "x", 0.5, 0.25, False, "doors"),
    Goal("door_decode", "Kafka records decoded in a reading task, 100 B", "/s a core", 1e6, 3e6, True, "doors"),
    Goal("door_ndjson", "HTTP: NDJSON posts of 1 MB", "MB/s", 60, 150, True, "doors"),
    Goal("door_posts", "HTTP: posts of one message, 100 clients", "/s", 3e3, 1e4, True, "doors"),
    Goal("door_spans", "OTLP: spans through a Collector into rows of spans", "/s", 3e4, 1e5, True, "doors"),
    Goal("door_memory", "worker's memory with all doors, above none", "MiB", 20, 10, False, "doors"),
)
"""Every goal, in the order of the table."""


def _found(work: Callable[[], float | None]) -> float | None:
    """A figure of a section; None when the section did not run or failed."""
    try:
        return work()
    except (KeyError, IndexError, ValueError, StopIteration, TypeError):
        return None


def _case(results: Results, size: str) -> Any:
    return next(one for one in results["e2e"]["cases"] if (one["size"], one["sink"]) == (size, "noop"))


def _of_kafka(results: Results, size: int) -> float:
    """Processor time a message of this chain with the SDK, of Kafka's chain at the same steady rate."""
    case = next(one for one in results["kafka"]["cases"] if one["size"] == size and one["rate"])
    ours, theirs = (sum(case[name]["cpu_seconds_per_million"].values()) for name in ("SDK", "kafka"))
    return float(ours / theirs)


def _plan(results: Results) -> Any:
    """A plan with the most known and the most active streams."""
    return next(one for one in results["plans"]["cases"] if (one["known"], one["active"]) == (1_000_000, 10_000))


def _load(results: Results, share: float) -> Any:
    """The loads of the latency section are shares of the measured capacity."""
    return next(one for one in results["latency"]["loads"] if one["load"] == share)


def _quiet(results: Results, road: str) -> float:
    """The p99 of a quiet stream at the highest loss."""
    return float([one for one in results["channels"]["quiet"] if one["road"] == road][-1]["p99"])


def _fleet(results: Results, slots: int, known: int) -> Any:
    """Planning for so many slots and known streams in each."""
    return next(one for one in results["fleet"]["cases"] if (one["slots"], one["known"]) == (slots, known))


def goals_of(results: Results) -> dict[str, float | None]:
    """The measured figure of each goal."""
    memory, fan_in = results.get("memory", {}), results.get("fanin", {})
    looked: dict[str, Callable[[], float | None]] = {
        "p50_10": lambda: 1000 * _load(results, 0.1)["p50"],
        "p50_50": lambda: 1000 * _load(results, 0.5)["p50"],
        "p50_80": lambda: 1000 * _load(results, 0.8)["p50"],
        "lone": lambda: results["latency"]["lone"]["of_batch"],
        "ceiling_100": lambda: _case(results, "100 B")["rate_of_ceiling"],
        "ceiling_1k": lambda: _case(results, "1 KB")["rate_of_ceiling"],
        "kafka_100": lambda: _of_kafka(results, 100),
        "kafka_1k": lambda: _of_kafka(results, 1024),
        "plan_ms": lambda: _plan(results)["plan_ms"],
        "plan_kb": lambda: _plan(results)["offset_bytes"] / 1000,
        "fleet": lambda: _fleet(results, 64, 10_000)["plan_ms"],
        "fleet_256": lambda: _fleet(results, 256, 1_000)["plan_ms"],
        "tell": lambda: _fleet(results, 64, 10_000)["tell_ms"],
        "active": lambda: active.most(results["active"]),
        "active_spark": lambda: next(one["rate"] for one in fan_in["streams"] if one["streams"] == 10_000),
        "sessions": lambda: sessions.cores(results["sessions"]),
        "session": lambda: sessions.kibibytes(results["sessions"]),
        "send": lambda: sdk.slowest(results["sdk"], "send"),
        "decode": lambda: decode.slowest(results["decode"]),
        "noop_100": lambda: _case(results, "100 B")["run"]["messages_per_second"]["median"],
        "noop_1k": lambda: _case(results, "1 KB")["run"]["megabytes_per_second"],
        "cpu": lambda: _case(results, "100 B")["cpu_of_ceiling"],
        "latency": lambda: (
            1000 * _load(results, 0.5)["p50"] / results["latency"]["bare_ms"]["Python source, one row"]["median"]
        ),
        "fanin": lambda: next(
            one["all_but_senders"] / fan_in["connectors"][0]["all_but_senders"]
            for one in fan_in["connectors"]
            if one["connectors"] == 1000
        ),
        "sdk": lambda: sdk.slowest(results["sdk"]),
        "memory": lambda: (memory["peak_MiB"] - memory["budget_MiB"]) * (1 << 20) / 1e6,
        "publish": lambda: results["durable"]["publish"]["milliseconds"],
        "tiers": lambda: results["durable"]["tiers"]["milliseconds"],
        "outside": lambda: results["durable"]["deliveries"]["a_second"],
        "group": lambda: results["durable"]["group"]["a_second"],
        "instances": lambda: results["durable"]["functions"]["a_second"],
        "channels": lambda: _quiet(results, "quic") / _quiet(results, "tcp"),
        "door_java": lambda: results["doors"]["producers"]["Java"]["megabytes_per_second"],
        "door_confluent": lambda: results["doors"]["producers"]["confluent-kafka"]["rows_per_second"],
        "door_of_kafka": lambda: results["doors"]["chains"]["of_kafka"],
        "door_decode": lambda: min(one["median"] for one in results["doors"]["decode"]),
        "door_ndjson": lambda: results["doors"]["posts"]["NDJSON of 1 MB"]["megabytes_per_second"],
        "door_posts": lambda: results["doors"]["posts"]["one message"]["posts_per_second"],
        "door_spans": lambda: results["doors"]["spans"]["spans_per_second"],
        "door_memory": lambda: results["doors"]["memory"]["all"] - results["doors"]["memory"]["none"],
    }
    return {key: _found(work) for key, work in looked.items()}


def goals_table(found: Mapping[str, float | None]) -> str:
    """Every goal beside its measured figure."""
    return table(
        ("goal", "wanted", "measured", "result", "section"),
        [
            (goal.description, goal.bounds, amount(found.get(goal.key)), goal.says(found.get(goal.key)), goal.section)
            for goal in GOALS
        ],
    )
