"""Adaptive credits beside a fixed window: loads in simulated time, and one real load."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

from proving.bench.simulated_loads import LOADS, compared
from proving.bench.stage import Context, Installation, noop
from proving.bench.usage import MEBIBYTE
from proving.ticker import Ticker

SHORT: dict[str, Any] = {"warm_up": 5.0, "window": 1.0, "windows": 5}
WAYS = ("fixed", "adaptive")
LOOK_SECONDS = 0.1


def measure(context: Context) -> dict[str, Any]:
    """Every load of ``proving/bench/simulated_loads.py``, and a short real run of one connector at full speed."""
    cases = []
    for load in LOADS:
        context.progress(f"credits: {load.name}")
        cases.append(compared(load))
    return {"cases": cases, "real": {credits: real(context, credits) for credits in WAYS}}


def real(context: Context, credits: str) -> dict[str, Any]:
    """One connector, 100 B, into noop: messages a second, buffered rows, and waits for acknowledgements."""
    context.progress(f"credits: {credits}, one connector into noop")
    _ = context.spark
    held: list[int] = []
    with (
        Installation(
            replace(context, lengths=replace(context.lengths, **SHORT)), noop, credits=credits
        ) as installation,
        Ticker(LOOK_SECONDS, lambda _: held.append(installation.buffered())),
    ):
        run = installation.run()
    batches = [batch["ms"].get("triggerExecution", 0) / 1000 for batch in run["batches"]]
    return {
        # Of all windows together, because a batch may last longer than one window.
        "messages_per_second": run["messages"] / run["wall"],
        "mean_MiB": mean(held or [0]) / MEBIBYTE,
        "peak_MiB": max(held, default=0) / MEBIBYTE,
        "batch_seconds": mean(batches or [0.0]),
    }
