"""Faults of a network as a function of a seed: the offsets in a stream of bytes at which to pause, cut and split.

Pure: bytes in, pieces out. The places are counted in bytes and drawn from the seed, the connection's number and the
direction, so that they do not depend on how the bytes arrive. :class:`~wallaroo_spark.wiretap.proxy.Proxy` carries the
pieces out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from wallaroo_spark.errors import ConfigurationError

STUTTER_BYTES = 16 * 1024
"""Mean number of bytes between two pauses. A choice: a few pauses in each megabyte."""


@dataclass(frozen=True)
class Faults:
    """The faults of a proxy. By default there are none.

    Raises :class:`ConfigurationError` for a number below zero.
    """

    delay: float = 0.0
    """Seconds by which all bytes arrive later. Order and throughput stay as they are."""
    stutter: float = 0.0
    """Mean length in seconds of the pauses; 0: none."""
    stutter_bytes: int = STUTTER_BYTES
    """Mean number of bytes between two pauses."""
    cut: int = 0
    """Mean number of bytes of one direction after which the connection is cut, often within a frame; 0: never.

    Half of the cuts end the connection in order, half with a reset.
    """
    split: int = 0
    """Most bytes that pass at once, each piece in a packet of its own as far as the system allows; 0: no limit."""
    seed: int = 0
    """The same seed draws the same places."""

    def __post_init__(self) -> None:
        least = {"delay": 0, "stutter": 0, "stutter_bytes": 1, "cut": 0, "split": 0}
        for name, minimum in least.items():
            if (value := getattr(self, name)) < minimum:
                raise ConfigurationError(
                    f"fault {name} is {value}; it is {minimum} or more", code="option-out-of-range", fault=name
                )

    def __bool__(self) -> bool:
        return bool(self.delay or self.stutter or self.cut or self.split)


@dataclass(frozen=True)
class Pause:
    """Nothing passes in this direction for some seconds."""

    seconds: float
    """Length of the pause."""
    offset: int
    """Bytes of the direction that have passed before."""


@dataclass(frozen=True)
class Cut:
    """The connection ends here, in both directions."""

    reset: bool
    """Whether it ends with a reset."""
    offset: int
    """Bytes of the direction that have passed before."""


class FaultSchedule:
    """The faults of one direction of one connection."""

    def __init__(self, faults: Faults, connection: int, sender: str) -> None:
        place = f"{faults.seed}/{connection}/{sender}"
        # A generator for each kind of fault: the places of one do not depend on the others.
        self._stutters, self._cuts, self._splits = (random.Random(f"{place}/{kind}") for kind in range(3))
        self._faults = faults
        self._passed = 0
        self._pause_at = self._stutters.randint(1, 2 * faults.stutter_bytes) if faults.stutter else None
        self._cut_at = self._cuts.randint(1, 2 * faults.cut) if faults.cut else None
        self._split_at = self._next_split()

    def pieces(self, data: bytes) -> Iterator[bytes | Pause | Cut]:
        """The next bytes of the direction as pieces to pass on one by one, with the faults between them.

        A :class:`Cut` is the last item.
        """
        while data:
            places = [at for at in (self._pause_at, self._cut_at, self._split_at) if at is not None]
            count = min([len(data), *(at - self._passed for at in places)])
            piece, data = data[:count], data[count:]
            self._passed += count
            yield piece
            if self._passed == self._split_at:
                self._split_at = self._next_split()
            if self._passed == self._cut_at:
                yield Cut(self._cuts.random() < 0.5, self._passed)
                return
            if self._passed == self._pause_at:
                yield Pause(self._faults.stutter * self._stutters.uniform(0.5, 1.5), self._passed)
                self._pause_at = self._passed + self._stutters.randint(1, 2 * self._faults.stutter_bytes)

    def _next_split(self) -> int | None:
        return self._passed + self._splits.randint(1, self._faults.split) if self._faults.split else None
