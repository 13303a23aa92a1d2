"""A run as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from proving.bench.results.figures import amount, table
from proving.bench.results.goals import Results, goals_of, goals_table
from proving.bench.usage import ROLES

PARTS = {
    "latestOffset": "asking workers for rows",
    "queryPlanning": "planning",
    "walCommit": "offsets/N",
    "addBatch": "reading and writing",
    "commitOffsets": "commits/N",
    "triggerExecution": "whole batch",
}
"""The parts of a micro-batch: Spark's name and the label in tables."""


def text(results: Results) -> str:
    """All tables, the goals last."""
    parts = [part for name in TABLES if (part := section(results, name)) is not None]
    failed = [f"{name} failed: {one['error']}" for name, one in results.items() if "error" in one]
    return "\n\n".join([*parts, *failed, goals_table(goals_of(results))])


def section(results: Results, name: str) -> str | None:
    """The tables of a section; None when it did not run or failed."""
    if "error" in results.get(name, {"error": "not run"}):
        return None
    return "\n\n".join(TABLES[name](results[name]))


def _decode(found: Any) -> Iterator[str]:
    yield "Decoding, messages a second of processor time:"
    columns = sorted({case["revision"] for case in found["cases"]})
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for case in found["cases"]:
        rows.setdefault((case["shape"], case["streams"]), {})[case["revision"]] = case["median"]
    body = [(shape, str(streams), *(amount(row[name]) for name in columns)) for (shape, streams), row in rows.items()]
    yield table(("payload", "streams", *columns), body)


def _active(found: Any) -> Iterator[str]:
    yield "Active streams in one worker, 100 B, processor time of all that it does for a batch, without Spark:"
    body = [
        (
            f"{case['streams']:,}",
            f"{case['sessions']:,}",
            amount(case["messages_per_second"]),
            f"{case['worker_seconds_per_million']:.2f}",
            f"{case['of_one_stream']:.1f}",
        )
        for case in found["cases"]
    ]
    yield table(("streams", "sessions", "msg/s", "CPU s a million", "of one stream's"), body)


def _sdk(found: Any) -> Iterator[str]:
    yield f"One Python connector, {found['size']} B, messages a second of elapsed time (of its own processor time):"
    bulk = {case["revision"]: case["clock"]["median"] for case in found["cases"] if case["way"] == "send_many"}
    body = [
        (
            case["revision"],
            case["way"],
            amount(case["clock"]["median"]),
            amount(case["cpu"]["median"]),
            amount(case["clock"]["median"] / bulk[case["revision"]]),
        )
        for case in found["cases"]
    ]
    yield table(("revision", "way", "msg/s", "msg/s of processor time", "of send_many"), body)


def _e2e(found: Any) -> Iterator[str]:
    yield f"End to end ({found['revision']}, one connector, one worker), beside the ceiling:"
    body = []
    for one in found["cases"]:
        run, top = one["run"], one["ceiling"]
        rates = (amount(run["messages_per_second"]["median"]), amount(run["megabytes_per_second"]))
        limit = amount(top["messages_per_second"]["median"])
        body.append(
            (one["size"], one["sink"], *rates, limit, amount(one["rate_of_ceiling"]), amount(one["cpu_of_ceiling"]))
        )
    sdk = found["sdk"]
    body.append(
        (
            "100 B, SDK",
            "noop",
            amount(sdk["messages_per_second"]["median"]),
            amount(sdk["megabytes_per_second"]),
            "-",
            "-",
            "-",
        )
    )
    yield table(("payload", "sink", "msg/s", "MB/s", "ceiling msg/s", "rate/ceiling", "CPU/ceiling"), body)
    yield "CPU seconds a million messages, by process:"
    yield table(("payload", "sink", "", *ROLES), list(_cpu_rows(found)))


def _cpu_rows(found: Any) -> Iterator[tuple[str, ...]]:
    for one in found["cases"]:
        for name in ("run", "ceiling"):
            by_role = one[name]["cpu_seconds_per_million"]
            yield (one["size"], one["sink"], name, *(amount(by_role.get(role)) for role in ROLES))
    by_role = found["sdk"]["cpu_seconds_per_million"]
    yield ("100 B", "noop", "SDK", *(amount(by_role.get(role)) for role in ROLES))


def _latency(found: Any) -> Iterator[str]:
    bare = ", ".join(f"{name}: {amount(one['median'])} ms" for name, one in found["bare_ms"].items())
    yield f"Latency, due → committed → acknowledged, in ms. A bare micro-batch: {bare}."
    body = [
        (
            f"{one['load']:.0%}",
            amount(one["rate"]),
            *(amount(1000 * one[name]) for name in ("p50", "p99", "p99.9")),
            amount(one["batch_ms"]),
            amount(ratio),
        )
        for one, ratio in zip(found["loads"], found["p50_of_bare"], strict=True)
    ]
    yield table(("load", "msg/s", "p50", "p99", "p99.9", "micro-batch", "p50/bare"), body)
    if (lone := found.get("lone")) is not None:
        yield (
            f"One message at a time, p50: {amount(lone['p50_ms'])} ms to its ACK. Until its batch begins "
            f"{amount(lone['before_ms'])} ms, the batch {amount(lone['batch_ms'])} ms, from its end to the ACK "
            f"{amount(lone['after_ms'])} ms."
        )
    yield "Parts of a micro-batch, medians in ms:"
    batches = {**found["bare_ms"], **{f"{one['load']:.0%} of the load": one for one in found["loads"]}}
    body = [(name, *(amount(one["parts_ms"].get(part)) for part in PARTS)) for name, one in batches.items()]
    yield table(("micro-batch", *PARTS.values()), body)


def cores_busy(results: Results) -> str:
    """The cores that each process keeps busy in runs that have goals: what a run of all cores is made of."""
    runs: list[tuple[str, float, dict[str, float]]] = []
    for one in results.get("e2e", {}).get("cases", ()):
        for name in ("run", "ceiling") if one["sink"] == "noop" else ():
            rate = one[name]["messages_per_second"]["median"]
            runs.append((f"{one['size']} into noop, {name}", rate, one[name]["cpu_seconds_per_million"]))
    for one in results.get("latency", {}).get("loads", ()):
        runs.append((f"100 B at {one['load']:.0%} of the load", one["rate"], one["cpu_seconds_per_million"]))
    for kind in ("connectors", "streams"):
        for one in results.get("fanin", {}).get(kind, ())[-1:]:
            name = f"100 B, {one['connectors']:,} connectors, {one['streams']:,} streams"
            runs += [(name, one["rate"], one["cpu_seconds_per_million"])] if "error" not in one else []
    body = []
    for name, rate, by_role in runs:
        cores = {role: rate * seconds / 1e6 for role, seconds in by_role.items()}
        body.append((name, amount(rate), *(amount(cores.get(role)) for role in ROLES), amount(sum(cores.values()))))
    return table(("", "msg/s", *ROLES, "all"), body)


def _fan_in(found: Any) -> Iterator[str]:
    yield f"Connectors and streams at {amount(found['rate'])} msg/s; CPU seconds a million messages, times in ms:"
    body = []
    for kind in ("connectors", "streams"):
        for one in found[kind]:
            if "error" in one:
                body.append((str(one["connectors"]), str(one["streams"]), "failed", *["-"] * 7))
                continue
            by_role, ms = one["cpu_seconds_per_million"], one["parts_ms"]
            cpu = (
                amount(one["rate"]),
                *(amount(by_role.get(role)) for role in ("worker", "reading tasks", "JVM", "planner")),
            )
            times = (amount(ms.get("latestOffset")), amount(ms.get("triggerExecution")), f"{one['offsets_bytes']:,}")
            body.append((str(one["connectors"]), str(one["streams"]), *cpu, *times))
    head = (
        "connectors",
        "streams",
        "acked/s",
        "worker",
        "reading",
        "JVM",
        "planner",
        "latestOffset",
        "batch",
        "offsets/N bytes",
    )
    yield table(head, body)


def _memory(found: Any) -> Iterator[str]:
    first = found["first_ack_after_seconds"]
    yield (
        f"Memory of the worker, MiB: budget {found['budget_MiB']:.0f}, empty {found['empty_MiB']:.0f}, peak while "
        f"running {found['running_peak_MiB']:.0f}, peak in {found['paused_seconds']:.0f} s with the query paused "
        f"{found['paused_peak_MiB']:.0f}, of which {found['buffered_MiB']:.0f} counted as buffered. First ACK after "
        f"{'-' if first is None else f'{first:.1f}'} s; then {amount(found['rate_after'])} msg/s against "
        f"{amount(found['rate_before'])} before."
    )


def _credits(found: Any) -> Iterator[str]:
    yield "Credits, a fixed window → adaptive credits, in simulated time; buffered rows in MiB, waits in seconds:"
    names = ("MiB_per_second", "mean_MiB", "peak_MiB", "p50_seconds", "p99_seconds")
    body = [
        (one["load"], *(f"{amount(one['fixed'][name])} → {amount(one['adaptive'][name])}" for name in names))
        for one in found["cases"]
    ]
    yield table(("load", "MiB/s", "buffered, mean", "buffered, peak", "p50 to ACK", "p99 to ACK"), body)
    yield "One connector, 100 B, into noop:"
    body = [
        (
            credits,
            *(amount(one[name]) for name in ("messages_per_second", "mean_MiB", "peak_MiB", "batch_seconds")),
        )
        for credits, one in found["real"].items()
    ]
    yield table(("credits", "msg/s", "buffered, mean MiB", "buffered, peak MiB", "batch, s"), body)


def _sessions(found: Any) -> Iterator[str]:
    yield (
        f"Sessions on one worker without Spark, {amount(found['rate'])} msg/s of all together, one stream each; the "
        "last column is the processor time a message against the fewest sessions:"
    )
    columns = (
        "KiB_a_session",
        "connecting_microseconds",
        "quiet_cores",
        "cpu_microseconds_a_message",
        "cores",
        "cpu_of_first",
    )
    body = [
        (case["revision"], f"{case['sessions']:,}", *(amount(case[name]) for name in columns))
        for case in found["cases"]
    ]
    head = ("KiB a session", "µs to connect", "cores, quiet", "µs a message", "cores, sending", "of the fewest")
    yield table(("revision", "sessions", *head), body)


def _leaving(found: Any) -> Iterator[str]:
    yield f"Out of Spark, batches of {found['rows']:,} rows of 100 B, beside Spark's own Parquet in the same minute:"
    body = [
        (one["sink"], *(["failed", one["error"]] if "error" in one else _leaving_rates(one))) for one in found["sinks"]
    ]
    yield table(("transactional sink", "rows/s", "of plain Parquet"), body)
    topic = found["pubsub"]
    yield (
        f"Publish-subscribe, one partition: {amount(topic['rows_per_second'])} rows/s to each of "
        f"{len(topic['subscribers'])} subscribers in whole epochs; the same query into noop: {amount(topic['noop'])}."
    )


def _leaving_rates(one: Any) -> tuple[str, str]:
    return amount(one["rows_per_second"]["median"]), amount(one["of_plain_parquet"])


def _fleet(found: Any) -> Iterator[str]:
    yield (
        f"Planning a batch, and telling of its commit, with {found['active']} active streams in each slot; elapsed and "
        "the driver's processor time in ms, kB of all workers:"
    )
    names = ("plan_ms", "plan_cpu_ms", "plan_bytes", "tell_ms", "tell_cpu_ms", "tell_bytes")
    body = [
        (
            str(one["slots"]),
            f"{one['known']:,}",
            *(amount(one[name] / 1000 if name.endswith("_bytes") else one[name]) for name in names),
        )
        for one in found["cases"]
    ]
    yield table(("slots", "known in each", "plan", "CPU", "kB", "tell", "CPU", "kB"), body)


def _plans(found: Any) -> Iterator[str]:
    yield "Planning a batch without workers, times in ms:"
    names = ("plan_ms", "plan_cpu_ms", "slowest_ms", "changes_ms")
    body = [
        (
            f"{one['known']:,}",
            f"{one['active']:,}",
            *(amount(one[name]) for name in names),
            f"{one['offset_bytes']:,}",
        )
        for one in found["cases"]
    ]
    head = ("latestOffset", "CPU", "slowest", "changes from start to end", "offsets/N bytes")
    yield table(("known streams", "active", *head), body)


def _of_everything(seconds: dict[str, float]) -> float | None:
    """The sum of all roles; None when a process has ended between two samples, and has taken its time along."""
    return sum(seconds.values()) if min(seconds.values(), default=0.0) >= 0 else None


def _kafka(found: Any) -> Iterator[str]:
    yield "Kafka's chain (Python producer, broker, Spark's Kafka source) beside this one, into noop; CPU of everything:"
    body = []
    for case in found["cases"]:
        sides = ("kafka", "SDK", "encoded")
        seconds = {name: _of_everything(case[name]["cpu_seconds_per_million"]) for name in sides}
        rates = [amount(case[name]["messages_per_second"]) for name in seconds]
        base = seconds["kafka"]
        shares = [amount(one / base if one is not None and base else None) for one in map(seconds.get, sides[1:])]
        asked = amount(case["rate"]) if case["rate"] else "most"
        body.append((f"{case['size']} B", asked, *rates, *map(amount, seconds.values()), *shares))
    names = ("Kafka", "SDK", "encoded")
    columns = (*(f"{name} msg/s" for name in names), *(f"{name} CPU s/M" for name in names))
    yield table(("payload", "rate", *columns, "SDK/Kafka", "encoded/Kafka"), body)


def _durable(found: Any) -> Iterator[str]:
    yield "Durable streams and pipelines, beside the duration of a batch in the same application:"
    body = [
        (name, f"{case['milliseconds']:,.0f} ms", f"{case['milliseconds'] / case['batch_milliseconds']:.1f}")
        for name, case in (
            ("publish to a committed offset, p50", found["publish"]),
            ("three tiers outside Spark, publish to the last output, p50", found["tiers"]),
        )
    ]
    yield table(("", "time", "of a batch"), body)
    outside, inside = found["deliveries"]["a_second"], found["functions"]["a_second"]
    rates = [("instances outside Spark", outside), ("instances inside Spark", inside)]
    if (group := found.get("group")) is not None:
        rates.append(("events of a group", group["a_second"]))
    yield table(
        ("instances of one tier, events", "a second", "of those outside"),
        [(name, f"{rate:,.0f}", f"{rate / outside:.1f}") for name, rate in rates],
    )
    yield "A publisher beside instances that wait for a worker, and one whose requests are for every partition, p50:"
    rows = [(f"{one['active']:,} active instances", one) for one in found["active"]]
    rows += [(f"{one['partitions']:,} partitions", one) for one in found["partitions"]]
    least = found["publish"]["milliseconds"]
    yield table(
        ("", "publish", "batch", "of the publish above"),
        [
            (
                name,
                f"{one['milliseconds']:,.0f} ms",
                f"{one['batch_milliseconds']:,.0f} ms",
                f"{one['milliseconds'] / least:.1f}",
            )
            for name, one in rows
        ],
    )


def _doors(found: Any) -> Iterator[str]:
    yield f"Producers that people have, {found['size']} B, into noop; CPU seconds a million rows, of everything:"
    runs = {f"Kafka, {name}": run for name, run in found["producers"].items()}
    runs |= {f"HTTP, posts of {name}": run for name, run in found["posts"].items()}
    body = [
        (
            name,
            amount(run["rows_per_second"]),
            amount(run["megabytes_per_second"]),
            amount(run.get("posts_per_second")),
            amount(1000 * run["batch_seconds"]),
            amount(_of_everything(run["cpu_seconds_per_million"])),
        )
        for name, run in runs.items()
    ]
    yield table(("client", "rows/s", "MB/s", "posts/s", "batch, ms", "CPU s/M"), body)
    decoded = ", ".join(f"{amount(one['median'])} in batches of {one['batch']}" for one in found["decode"])
    memory = found["memory"]
    text = (
        f"Kafka records of {found['size']} B decoded in a reading task, a second a core: {decoded}. Memory of a worker "
        f"with all doors and no client: {amount(memory['all'])} MiB, without doors {amount(memory['none'])}."
    )
    chains = found["chains"]
    if "of_kafka" in chains:
        ours, theirs = (sum(chains[name]["cpu_seconds_per_million"].values()) for name in ("door", "kafka"))
        text += (
            f" The same producer at {amount(chains['rate'])} records/s: {amount(ours)} CPU seconds a million, and "
            f"{amount(theirs)} into a broker and Spark's Kafka source."
        )
    spans = found.get("spans", {})
    if "spans_per_second" in spans:
        text += (
            f" Spans through a Collector, {spans['clients']} clients with requests of {spans['spans']}, into rows of "
            f"`otel.spans`: {amount(spans['spans_per_second'])}/s."
        )
    yield text


def _channels(found: Any) -> Iterator[str]:
    rates = ", ".join(f"{road} {amount(one['median'])}" for road, one in found["bulk"].items())
    yield f"One stream on the loopback, messages of 64 KiB, with TLS, MB/s: {rates}."
    if "quiet" not in found:
        return
    for answer, name in (("answer", "quiet"), ("ACK, of a connector whose worker commits all the time", "connectors")):
        if runs := found.get(name):
            yield f"A quiet stream beside a busy one, from the moment that a message is due to its {answer}, in ms:"
            body = [(one["road"], f"{one['loss']:.0%}", amount(one["p50"]), amount(one["p99"])) for one in runs]
            yield table(("road", "loss", "p50", "p99"), body)
    moved, datagrams = found["moved"], found["datagrams"]
    yield (
        f"To the first answer after the client's address has changed: {amount(moved['quic']['median'])} ms on the same "
        f"connection over QUIC; over TCP {amount(moved['tcp']['median'])} ms for a new connection, once the old one is "
        f"known to be dead. Of {datagrams['sent']:,} unreliable messages at {datagrams['loss']:.0%} loss "
        f"{datagrams['lost']:,} were lost, and told so."
    )


TABLES: dict[str, Callable[[Any], Iterator[str]]] = {
    "decode": _decode,
    "active": _active,
    "sdk": _sdk,
    "e2e": _e2e,
    "latency": _latency,
    "fanin": _fan_in,
    "memory": _memory,
    "credits": _credits,
    "sessions": _sessions,
    "leaving": _leaving,
    "plans": _plans,
    "fleet": _fleet,
    "durable": _durable,
    "channels": _channels,
    "kafka": _kafka,
    "doors": _doors,
}
