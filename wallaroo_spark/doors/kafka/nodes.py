"""The nodes and partitions that clients see: each slot as several nodes, and which slot has a partition.

A producer with default settings sends a few batches to each partition and to each node at a time, and all that is under
way belongs to one batch of Spark. So a topic has many partitions, and a slot appears as several nodes, which are the
same host at other ports. Source: ``docs/doors/kafka.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Node(NamedTuple):
    """One node, as Metadata shows it."""

    number: int
    host: str
    port: int


@dataclass(frozen=True)
class Layout:
    """The nodes of all slots."""

    slots: int
    """The number of slots."""
    nodes: int
    """The number of nodes of each slot."""
    port: int
    """The port of the first node of slot 0."""
    partitions: int
    """The number of partitions of each topic."""

    def ports(self, slot: int) -> list[int]:
        """The ports on which a slot listens, one for each of its nodes."""
        return [self.port + slot * self.nodes + number for number in range(self.nodes)]

    def slot_of(self, partition: int) -> int | None:
        """The slot that has a partition; None when topics have no such partition."""
        return partition % self.slots if 0 <= partition < self.partitions else None

    def leader(self, partition: int) -> int:
        """The number of the node that has a partition."""
        return (partition % self.slots) * self.nodes + (partition // self.slots) % self.nodes

    def shown(self, hosts: Mapping[int, str]) -> list[Node]:
        """The nodes of the slots that are served; ``hosts`` are their addresses by slot."""
        return [
            Node(slot * self.nodes + number, hosts[slot], port)
            for slot in sorted(hosts)
            if slot < self.slots
            for number, port in enumerate(self.ports(slot))
        ]
