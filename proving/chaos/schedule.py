"""The faults of a run and their times. One seed is one schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of faults."""

    CONNECTOR = "connector killed"
    WORKER = "worker killed"
    EXECUTOR = "executor killed"
    DRIVER = "driver killed"
    REDIS = "Redis killed"
    FLUSH = "Redis emptied"
    STOP = "worker stopped"
    STOP_FOR_GOOD = "worker stopped for good"


KILLS = tuple(kind for kind in Kind if kind not in (Kind.FLUSH, Kind.STOP, Kind.STOP_FOR_GOOD))
"""The kinds that end a process; only they count as kills."""

AT_ONCE = 0.2
"""The fraction of faults that follow the one before at once, without time to recover."""


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule."""

    at: float
    """When it is due, in seconds after sending began."""
    kind: Kind
    pick: float
    """A number in [0, 1) that chooses among the possible victims of that moment."""
    seconds: float
    """How long Redis is away or a process is stopped."""


def draw(
    seed: int, kills: int, begin: float, end: float, lease_seconds: float, among: Sequence[Kind] = tuple(Kind)
) -> list[Fault]:
    """A schedule with exactly ``kills`` kills between ``begin`` and ``end`` (seconds): rounds of all kinds ``among``
    which it draws, each in another order. Faults that end no process come in addition.
    """
    dice = random.Random(seed)
    kinds: list[Kind] = []
    while sum(kind in KILLS for kind in kinds) < kills:
        kinds += dice.sample(among, len(among))
    while sum(kind in KILLS for kind in kinds) > kills or kinds[-1] not in KILLS:
        kinds.pop()
    gaps = [0.02 if dice.random() < AT_ONCE else dice.uniform(0.5, 1.5) for _ in kinds]
    scale = (end - begin) / sum(gaps)
    faults, at = [], begin
    for kind, gap in zip(kinds, gaps, strict=True):
        at += gap * scale
        faults.append(Fault(round(at, 2), kind, round(dice.random(), 3), _length(kind, dice, lease_seconds)))
    return faults


def _length(kind: Kind, dice: random.Random, lease_seconds: float) -> float:
    chance = dice.random()
    if kind is Kind.STOP:
        return round(lease_seconds * (1.3 + 0.7 * chance), 2)
    return round(0.3 + 3.7 * chance, 2) if kind is Kind.REDIS else 0.0
