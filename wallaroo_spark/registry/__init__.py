"""The registry: which worker serves each slot, and to which slot each connector instance belongs. It is kept in Redis.

Nothing in Redis needs to be durable. If Redis loses its data, each worker writes its lease, its instances and its
streams again at its next renewal. No message is lost; new sessions wait for a few seconds.
Source: ``docs/decisions/redis-holds-nothing-durable.md``.
"""

from wallaroo_spark.registry.client import Registry, application_registry
from wallaroo_spark.registry.embedded import EmbeddedRedis
from wallaroo_spark.registry.model import (
    NO_QUERY,
    QUERY_STARTS,
    Assignment,
    FleetDiscovery,
    KnownWorkers,
    Lease,
    state_served,
)
