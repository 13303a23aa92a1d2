"""Which slot is served where, which connector instance belongs to which slot; held in Redis, and nothing of it durable.

Everything here can be written again by those it is about: a worker's next renewal puts back its lease, its instances
and its streams, so an emptied Redis costs a few seconds of new sessions and no message.
Source: ``docs/decisions/redis-holds-nothing-durable.md``.
"""

from wallaroo_spark.registry.client import Registry
from wallaroo_spark.registry.embedded import EmbeddedRedis
from wallaroo_spark.registry.model import NO_QUERY, QUERY_STARTS, Assignment, Lease, state_served

__all__ = ["NO_QUERY", "QUERY_STARTS", "Assignment", "EmbeddedRedis", "Lease", "Registry", "state_served"]
