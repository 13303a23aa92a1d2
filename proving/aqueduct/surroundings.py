"""What both sides of a history share."""

from __future__ import annotations

from dataclasses import dataclass

from proving.aqueduct.judge import Judge
from proving.aqueduct.network import Network
from proving.aqueduct.profile import Profile
from proving.aqueduct.wire import Wire
from proving.simulator.engine.core import Simulation
from wallaroo_spark.aqueduct.frames import Headers, Side


@dataclass(frozen=True)
class Surroundings:
    """What both sides of a history share."""

    sim: Simulation
    profile: Profile
    judge: Judge
    wire: Wire
    network: Network
    headers: dict[Side, Headers]
    """What the sides send as their headers."""
