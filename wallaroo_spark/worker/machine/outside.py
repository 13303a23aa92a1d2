"""The world outside the machine, as its instructions know it, and which call of that world each instruction is.

A worker's service is such a world, with sockets and a registry; the simulator has another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from wallaroo_spark.worker.machine import events as e


class Outside(Protocol):
    """Carries out the instructions of one machine. Each call returns at once; answers come back as events."""

    def send(self, send: e.Send) -> None:
        """Write bytes to a peer."""

    def close(self, close: e.Close) -> None:
        """Close a connection."""

    def set_reading(self, number: int, reading: bool) -> None:
        """Read from a peer, or do not."""

    def ask_assignment(self, ask: e.AskAssignment) -> None:
        """Ask the registry which slot an instance belongs to."""

    def release_instances(self, instances: tuple[str, ...]) -> None:
        """Give instances back."""

    def ask_claims(self, ask: e.AskClaims) -> None:
        """Ask the registry for stream ids."""

    def release_claims(self, streams: tuple[int, ...]) -> None:
        """Give stream ids back."""

    def log(self, line: e.Log) -> None:
        """Write a line to the log."""

    def wake_readers(self) -> None:
        """Have plans and waiting reads look at the buffer again."""


_CALLS: dict[type, Callable[[Outside, Any], None]] = {
    e.Send: lambda outside, instruction: outside.send(instruction),
    e.Close: lambda outside, instruction: outside.close(instruction),
    e.PauseReading: lambda outside, instruction: outside.set_reading(instruction.connection, False),
    e.ResumeReading: lambda outside, instruction: outside.set_reading(instruction.connection, True),
    e.AskAssignment: lambda outside, instruction: outside.ask_assignment(instruction),
    e.ReleaseInstances: lambda outside, instruction: outside.release_instances(instruction.instances),
    e.AskClaims: lambda outside, instruction: outside.ask_claims(instruction),
    e.ReleaseClaims: lambda outside, instruction: outside.release_claims(instruction.streams),
    e.Log: lambda outside, instruction: outside.log(instruction),
    e.WakeReaders: lambda outside, instruction: outside.wake_readers(),
}


def carry_out(instruction: e.Instruction, outside: Outside) -> None:
    """Have the world do what an instruction says."""
    _CALLS[type(instruction)](outside, instruction)
