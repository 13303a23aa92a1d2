"""Redis keeps the assignments and claims of workers that live; those of all others go, some with each renewal."""

from __future__ import annotations

from collections.abc import Callable

import redis

from wallaroo_spark.registry import Lease, Registry

MANY = 3_000
Acquire = Callable[..., Lease]


def renewals_until(registry: Registry, lease: Lease, done: Callable[[], bool]) -> int:
    for number in range(200):
        if done():
            return number
        registry.renew(lease, instances=["shop-here"], claims=[7])
    raise AssertionError("entries of workers that are gone stay")


def test_assignments_of_a_replaced_worker_are_deleted_some_at_a_time(
    registry: Registry, acquire: Acquire, client: redis.Redis, receiver: str
) -> None:
    gone, here = acquire(slot=0), acquire(slot=1, holder="w-2")
    assignments, claims = (f"wallaroo:{{{receiver}}}:{name}" for name in ("assignments", "claims"))
    client.hset(assignments, mapping={f"shop-{n}": f"0:{gone.generation}" for n in range(MANY)})
    client.hset(claims, mapping={str(100 + n): f"0:{gone.generation}" for n in range(MANY)})
    registry.renew(here, instances=["shop-here"], claims=[7])
    assert client.hlen(assignments) == client.hlen(claims) == MANY + 1

    acquire(slot=0, submission=2, holder="w-3")
    assert client.hlen(claims) == MANY + 1
    taken = renewals_until(registry, here, lambda: client.hlen(assignments) == client.hlen(claims) == 1)

    assert taken > 2
    assert client.hgetall(assignments) == {"shop-here": f"1:{here.generation}"}
    assert client.hgetall(claims) == {"7": f"1:{here.generation}"}


def test_assignments_of_a_hanging_worker_stay(
    registry: Registry, acquire: Acquire, acquire_expired: Acquire, client: redis.Redis, receiver: str
) -> None:
    hanging, here = acquire_expired(slot=0), acquire(slot=1, holder="w-2")
    assignments = f"wallaroo:{{{receiver}}}:assignments"
    client.hset(assignments, "shop-1", f"0:{hanging.generation}")
    for _ in range(5):
        registry.renew(here)

    assert client.hget(assignments, "shop-1") == f"0:{hanging.generation}"


def test_forgotten_slots_leave_nothing_for_good(
    registry: Registry, acquire: Acquire, client: redis.Redis, receiver: str
) -> None:
    here, gone = acquire(slot=0), acquire(slot=1, holder="w-2")
    registry.renew(gone, instances=["shop-1"], claims=[1])
    registry.forget_slots_from(1)
    keys = [f"wallaroo:{{{receiver}}}:{name}" for name in ("assignments", "claims")]

    renewals_until(registry, here, lambda: all(set(client.hkeys(key)) <= {"shop-here", "7"} for key in keys))


def test_a_receiver_that_nobody_runs_leaves_no_instances_in_redis_for_good(
    registry: Registry, acquire: Acquire, client: redis.Redis, receiver: str
) -> None:
    registry.renew(acquire(), instances=["shop-1"], claims=[1])

    assert all(client.pttl(f"wallaroo:{{{receiver}}}:{name}") > 0 for name in ("assignments", "claims"))
    assert client.pttl(f"wallaroo:{{{receiver}}}:leases") == -1
