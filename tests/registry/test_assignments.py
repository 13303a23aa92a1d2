from __future__ import annotations

from collections.abc import Callable

import pytest

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.registry import Assignment, Lease, Registry

Acquire = Callable[..., Lease]


def test_an_instance_stays_where_it_was_assigned(registry: Registry, acquire: Acquire) -> None:
    acquire(slot=1)
    assert registry.assign("shop-1", knocked=1, workers=3).slot == 1
    assert [registry.assign("shop-1", knocked, workers=3).slot for knocked in (0, 1, 2)] == [1, 1, 1]


def test_an_instance_that_knocks_at_the_wrong_slot_is_told_the_address_of_the_right_one(
    registry: Registry, acquire: Acquire
) -> None:
    lease = acquire(slot=1)
    registry.assign("shop-1", knocked=1, workers=2)
    assert registry.assign("shop-1", knocked=0, workers=2) == Assignment(1, lease.connect)


def test_no_address_is_told_while_nobody_serves_the_slot(
    registry: Registry, acquire: Acquire, acquire_expired: Acquire
) -> None:
    assert registry.assign("shop-1", knocked=0, workers=1) == Assignment(0, None)
    acquire_expired(slot=0)
    assert registry.assign("shop-1", knocked=0, workers=1) == Assignment(0, None)
    registry.release(acquire(slot=0))
    assert registry.assign("shop-1", knocked=0, workers=1) == Assignment(0, None)


@pytest.mark.parametrize("knocked", [0, 1, 2])
def test_the_first_instance_is_assigned_where_it_knocks(registry: Registry, knocked: int) -> None:
    assert registry.assign("shop-1", knocked, workers=3).slot == knocked


def test_an_instance_that_was_given_back_belongs_to_where_it_knocks(registry: Registry, acquire: Acquire) -> None:
    one = acquire(slot=1)
    for name in ("shop-1", "shop-2"):
        registry.assign(name, knocked=1, workers=2)
    registry.unassign(one, ["shop-1", "never seen"])
    assert [registry.assign(name, knocked=0, workers=2).slot for name in ("shop-1", "shop-2")] == [0, 1]
    registry.unassign(one, ["shop-1"])
    assert registry.assign("shop-1", knocked=1, workers=2).slot == 0, "it is no longer slot 1's to give"


def test_an_instance_whose_workers_buffer_is_gone_is_assigned_to_the_slot_it_connects_to(
    registry: Registry, acquire: Acquire
) -> None:
    for name in ("shop-1", "shop-2"):
        registry.assign(name, knocked=1, workers=2)
    acquire(slot=1, submission=1)
    registry.assign("shop-1", knocked=1, workers=2)
    newer = acquire(slot=1, submission=2)
    assert registry.assign("shop-1", knocked=0, workers=2).slot == 0, "another worker has the slot by now"
    registry.assign("shop-2", knocked=1, workers=2)
    registry.release(newer)
    assert registry.assign("shop-2", knocked=0, workers=2).slot == 0, "the worker has given its slot back"


def test_a_worker_that_may_only_be_stopped_keeps_its_assignments(registry: Registry, acquire_expired: Acquire) -> None:
    acquire_expired(slot=1)
    registry.assign("shop-1", knocked=1, workers=2)
    assert registry.assign("shop-1", knocked=0, workers=2) == Assignment(1, None)


def test_an_instance_that_knocks_at_a_slot_that_is_no_more_is_assigned_to_one_that_is(registry: Registry) -> None:
    assert registry.assign("shop-1", knocked=5, workers=2).slot == 0


def test_an_assignment_to_a_slot_that_is_no_more_is_void(registry: Registry) -> None:
    assert registry.assign("shop-1", knocked=2, workers=3).slot == 2
    assert registry.assign("shop-1", knocked=1, workers=2).slot == 1
    assert registry.assign("shop-1", knocked=2, workers=3).slot == 1


def test_forgotten_slots_take_their_assignments_along(registry: Registry) -> None:
    registry.assign("shop-1", knocked=1, workers=2)
    registry.assign("shop-2", knocked=0, workers=2)
    registry.forget_slots_from(1)
    assert registry.assign("shop-1", knocked=0, workers=2).slot == 0
    assert registry.assign("shop-2", knocked=1, workers=2).slot == 0


def test_a_renewal_puts_assignments_back_into_an_emptied_redis(
    registry: Registry, acquire: Acquire, empty_redis: Callable[[], None]
) -> None:
    lease = acquire(slot=1)
    empty_redis()
    registry.renew(lease, instances=["shop-1", "shop-2"])
    assert [registry.assign(name, knocked=0, workers=2).slot for name in ("shop-1", "shop-2")] == [1, 1]


def test_a_renewal_leaves_an_instance_where_it_was_assigned_since(registry: Registry, acquire: Acquire) -> None:
    registry.assign("shop-1", knocked=0, workers=2)
    registry.renew(acquire(slot=1), instances=["shop-1"])
    assert registry.assign("shop-1", knocked=1, workers=2).slot == 0


def test_without_workers_there_is_nothing_to_assign(registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match="workers: 0 is below 1"):
        registry.assign("shop-1", knocked=0, workers=0)
