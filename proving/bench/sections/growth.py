"""Cost by the number of connectors and of streams, and a worker's memory while its query is paused."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from proving.bench.results.figures import at
from proving.bench.sections.endtoend import OURS, parts, percentiles
from proving.bench.stage import Context, Installation, noop, per_million
from proving.bench.usage import MEBIBYTE, forget_peak, memory
from proving.ticker import Ticker

BURST_SECONDS = 0.1
SESSIONS = 10
"""Connectors over which many streams are spread."""
LONGEST_SECONDS = 90.0
"""A case that would begin later than this, on a slow machine, is left out."""
SAMPLE_SECONDS = 0.2
CATCH_UP_SECONDS = 60.0


def fan_in(context: Context, rate: float) -> dict[str, Any]:
    """The same rate from more and more connectors, then over more and more streams."""
    connectors = _grow(context, rate, [(count, 1) for count in context.lengths.connectors])
    # As many streams as connectors is a case of the first series.
    streams = [one for one in connectors if one["streams"] <= SESSIONS]
    streams += _grow(context, rate, [_spread(count) for count in context.lengths.streams if count > SESSIONS])
    return {
        "rate": rate,
        "burst_seconds": BURST_SECONDS,
        "connectors": connectors,
        "streams": streams,
        "cpu_of_one": [one["ours"] / connectors[0]["ours"] for one in connectors if "ours" in one],
    }


def _spread(streams: int) -> tuple[int, int]:
    sessions = min(SESSIONS, streams)
    return sessions, streams // sessions


def _grow(context: Context, rate: float, counts: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """One query for all cases: streams of earlier cases stay in the offsets, at most a ninth of the next case's."""
    found: list[dict[str, Any]] = []
    with Installation(context, noop) as installation:
        until = time.monotonic() + LONGEST_SECONDS
        for connectors, streams in counts:
            if time.monotonic() > until:
                context.say(
                    f"  {connectors} connectors with {streams} streams each: left out, because the time is over"
                )
                break
            context.progress(f"fan-in: {connectors} connectors with {streams} streams each, {rate:,.0f} msg/s")
            one: dict[str, Any] = {"connectors": connectors, "streams": connectors * streams}
            found.append(one)
            try:
                settings: dict[str, Any] = {"connectors": connectors, "streams": streams, "rate": rate}
                run = installation.run(warm_up=context.lengths.warm_up / 2, burst=BURST_SECONDS, **settings)
                if run["messages"] < 1:
                    raise RuntimeError("nothing was acknowledged while it was measured")
            except RuntimeError as error:
                one["error"] = str(error)
                context.say(f"  {connectors} connectors, {streams} streams each: {error}")
                break
            one |= _figures(run, installation)
            context.say(
                f"  {connectors:>5} connectors, {one['streams']:>6} streams: {one['ours']:6.2f} CPU s a million, "
                f"batch {one['parts_ms'].get('triggerExecution', 0):,.0f} ms, offsets {one['offsets_bytes']:,} bytes"
            )
    return found


def _figures(run: dict[str, Any], installation: Installation) -> dict[str, Any]:
    by_role = per_million(run)
    return {
        "cpu_seconds_per_million": by_role,
        "ours": sum(by_role.get(role, 0.0) for role in OURS),
        "all_but_senders": sum(seconds for role, seconds in by_role.items() if role != "sender"),
        "rate": run["messages"] / run["wall"],
        "parts_ms": parts(run["batches"]),
        "offsets_bytes": installation.offsets_bytes(),
        **({"latency": percentiles(run)} if run["latencies"] else {}),
    }


class Gate:
    """A foreachBatch sink that counts rows and waits while it is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = threading.Event()

    def shut(self) -> None:
        """The next batch waits."""
        self.waiting.clear()
        self._open.clear()

    def go(self) -> None:
        """Batches go on."""
        self._open.set()

    def __call__(self, frame: Any, number: int) -> None:
        if not self._open.is_set():
            self.waiting.set()
            self._open.wait(600)
        frame.write.format("noop").mode("overwrite").save()


def held(context: Context) -> dict[str, Any]:
    """A worker under full load while its query is paused, and how fast it catches up.

    Credits have a fixed window, because adaptive credits would not fill the buffer.
    """
    lengths, gate = context.lengths, Gate()
    samples: list[tuple[float, float, float]] = []
    with (
        Installation(context, lambda writer: writer.foreachBatch(gate), credits="fixed") as installation,
        contextlib.ExitStack() as last,
    ):
        last.callback(gate.go)
        budget = installation.receiver.options.memory_budget / MEBIBYTE
        pid = installation.workers[0]
        before = memory(pid)[0]
        seconds = 3 * lengths.warm_up + lengths.paused
        with (
            installation.load(seconds, drain=CATCH_UP_SECONDS) as process,
            Ticker(
                SAMPLE_SECONDS, lambda now: samples.append((now, memory(pid)[0], installation.buffered() / MEBIBYTE))
            ),
        ):
            began = process.began()
            time.sleep(lengths.warm_up)
            running = memory(pid)
            forget_peak(pid)
            gate.shut()
            shut = time.monotonic()
            for _ in range(int(lengths.paused)):
                context.progress(
                    f"memory: the query is paused, {memory(pid)[0]:.0f} MiB resident, budget {budget:.0f} MiB"
                )
                time.sleep(1.0)
            paused = memory(pid)
            buffered = installation.buffered() / MEBIBYTE
            gate.go()
            opened = time.monotonic()
            report = process.report()
            after = memory(pid)
    return {
        "budget_MiB": budget,
        "empty_MiB": before,
        "running_MiB": running[0],
        "running_peak_MiB": running[1],
        "paused_peak_MiB": paused[1],
        "peak_MiB": max(running[1], paused[1], after[1]),
        "buffered_MiB": buffered,
        "paused_seconds": opened - shut,
        **caught_up(report["points"], began, shut, opened),
        "samples": [(round(now - began, 2), rss, used) for now, rss, used in samples],
    }


def caught_up(points: list[Any], began: float, shut: float, opened: float) -> dict[str, Any]:
    """Seconds from the end of the pause to the first acknowledgement, and the rates before and after the pause."""
    behind = [time for time, _ in points if time > opened]
    steady = (at(points, shut) - at(points, began)) / (shut - began)
    end = min(points[-1][0], opened + 5.0) if points else opened
    rate = (at(points, end) - at(points, opened)) / (end - opened) if end > opened else 0.0
    return {
        "first_ack_after_seconds": behind[0] - opened if behind else None,
        "rate_before": steady,
        "rate_after": rate,
        "rate_after_of_before": rate / steady if steady else None,
    }
