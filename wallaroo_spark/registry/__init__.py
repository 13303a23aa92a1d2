"""Which slot is served where, and which connector instance belongs to which slot. Redis holds it, and nothing durable.

A worker's next renewal writes its lease, its instances and its streams again, so an emptied Redis costs no message:
only new sessions have to wait for a few seconds.
Source: ``docs/decisions/redis-holds-nothing-durable.md``.
"""

from wallaroo_spark.registry.client import Registry
from wallaroo_spark.registry.embedded import EmbeddedRedis
from wallaroo_spark.registry.fleet_discovery import FleetDiscovery, KnownWorkers
from wallaroo_spark.registry.model import NO_QUERY, QUERY_STARTS, Assignment, Lease, state_served

__all__ = [
    "NO_QUERY",
    "QUERY_STARTS",
    "Assignment",
    "EmbeddedRedis",
    "FleetDiscovery",
    "KnownWorkers",
    "Lease",
    "Registry",
    "state_served",
]
