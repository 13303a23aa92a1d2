"""A checkpoint that a sink's decision log lies beside."""

from __future__ import annotations

from pathlib import Path

from wallaroo_spark.sinks.decision_log import DecisionLog


def decided(checkpoint: Path, name: str, *, finished: bool) -> None:
    """Write the decision to commit batch 7 of a sink, and also its end if ``finished``."""
    log = DecisionLog(str(checkpoint), name)
    log.load()
    log.commit(7, 0, [])
    if finished:
        log.finish(7)
