"""The environment of the machine: the calls that carry out its instructions.

A worker's service implements them with sockets and a registry; the simulator implements them without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from wallaroo_spark.worker.machine import events as e


class Environment(Protocol):
    """Carries out the instructions of one machine. Each call returns at once; answers arrive as events."""

    def send(self, send: e.Send) -> None:
        """Write bytes to a peer."""

    def close(self, close: e.Close) -> None:
        """Close a connection."""

    def set_reading(self, number: int, reading: bool) -> None:
        """Start or stop reading a peer's socket."""

    def ask_assignment(self, ask: e.AskAssignment) -> None:
        """Ask the registry for the slot of an instance."""

    def release_instances(self, instances: tuple[str, ...]) -> None:
        """Release instances in the registry."""

    def ask_claims(self, ask: e.AskClaims) -> None:
        """Ask the registry to claim stream ids."""

    def release_claims(self, streams: tuple[int, ...]) -> None:
        """Release claims in the registry."""

    def log(self, line: e.Log) -> None:
        """Write a line to the log."""

    def wake_readers(self) -> None:
        """Make planning and waiting reads check the buffer again."""

    def wake_driver(self) -> None:
        """Answer the driver's call that waits for scopes to be told."""


_CALLS: dict[type, Callable[[Environment, Any], None]] = {
    e.Send: lambda environment, instruction: environment.send(instruction),
    e.Close: lambda environment, instruction: environment.close(instruction),
    e.SetReading: lambda environment, instruction: environment.set_reading(instruction.connection, instruction.reading),
    e.AskAssignment: lambda environment, instruction: environment.ask_assignment(instruction),
    e.ReleaseInstances: lambda environment, instruction: environment.release_instances(instruction.instances),
    e.AskClaims: lambda environment, instruction: environment.ask_claims(instruction),
    e.ReleaseClaims: lambda environment, instruction: environment.release_claims(instruction.streams),
    e.Log: lambda environment, instruction: environment.log(instruction),
    e.WakeReaders: lambda environment, instruction: environment.wake_readers(),
    e.WakeDriver: lambda environment, instruction: environment.wake_driver(),
}


def carry_out(instruction: e.Instruction, environment: Environment) -> None:
    """Carry out one instruction."""
    _CALLS[type(instruction)](environment, instruction)
