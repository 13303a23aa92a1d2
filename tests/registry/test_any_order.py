"""Calls in any order, compared with a simple model of the promises."""

from __future__ import annotations

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from wallaroo_spark.errors import LeaseLostError
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry

SLOTS = st.integers(0, 2)
STREAMS = st.sets(st.sampled_from([0, 1, 2**53 + 1, 2**64 - 1]))


def mark(lease: Lease) -> tuple[int, int]:
    """The owner in a claim."""
    return lease.slot, lease.generation


class Calls(RuleBasedStateMachine):
    """``on_record`` is the newest lease known of each slot and whether it is held; no lease expires here."""

    server: EmbeddedRedis
    leases = Bundle("leases")

    @initialize()
    def begin(self) -> None:
        self.client = redis.Redis.from_url(self.server.url)
        self.client.flushall()
        self.registry = Registry(self.server.url, "any", lease_seconds=600)
        self.on_record: dict[int, tuple[Lease, bool]] = {}
        self.claims: dict[int, tuple[int, int]] = {}

    def teardown(self) -> None:
        self.registry.close()
        self.client.close()

    @rule(target=leases, slot=SLOTS, submission=st.integers(1, 3), holder=st.sampled_from("ab"))
    def acquire(self, slot: int, submission: int, holder: str) -> object:
        known, held = self.on_record.get(slot, (None, False))
        if known is not None and known.submission > submission:
            with pytest.raises(LeaseLostError):
                self.registry.acquire(slot, submission, holder, "", "")
            return multiple()
        lease = self.registry.acquire(slot, submission, holder, "", "")
        same = known is not None and held and (known.submission, known.holder) == (submission, holder)
        if known is not None and held and known.submission == submission and not same:
            assert lease is None
            return multiple()
        assert lease is not None
        assert (lease.slot, lease.submission, lease.holder) == (slot, submission, holder)
        if same:
            assert lease == known
        elif known is not None:
            assert lease.generation > known.generation
        self.on_record[slot] = lease, True
        return lease

    def _keeps(self, lease: Lease) -> bool:
        known, held = self.on_record.get(lease.slot, (None, False))
        if known is None:
            return True
        ours, theirs = (lease.submission, lease.generation), (known.submission, known.generation)
        return ours > theirs or (ours == theirs and held and lease.holder == known.holder)

    def _take(self, lease: Lease, streams: set[int]) -> set[int]:
        self.on_record[lease.slot] = lease, True
        valid = {mark(known) for known, held in self.on_record.values() if held}
        for stream in streams:
            if self.claims.get(stream) not in valid:
                self.claims[stream] = mark(lease)
        return {stream for stream in streams if self.claims[stream] == mark(lease)}

    @rule(lease=leases, streams=STREAMS)
    def renew(self, lease: Lease, streams: set[int]) -> None:
        if self._keeps(lease):
            self.registry.renew(lease, claims=streams)
            self._take(lease, streams)
        else:
            with pytest.raises(LeaseLostError):
                self.registry.renew(lease, claims=streams)

    @rule(lease=leases, streams=STREAMS)
    def claim(self, lease: Lease, streams: set[int]) -> None:
        if self._keeps(lease):
            assert self.registry.claim(lease, streams) == self._take(lease, streams)
        else:
            with pytest.raises(LeaseLostError):
                self.registry.claim(lease, streams)

    @rule(lease=leases, streams=STREAMS)
    def unclaim(self, lease: Lease, streams: set[int]) -> None:
        self.registry.unclaim(lease, streams)
        self.claims = {s: owner for s, owner in self.claims.items() if s not in streams or owner != mark(lease)}

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        self.registry.release(lease)
        if self.on_record.get(lease.slot) == (lease, True):
            self.on_record[lease.slot] = lease, False

    @rule(lost=st.booleans())
    def empty_redis(self, lost: bool) -> None:
        self.client.flushall()
        if lost:
            self.client.script_flush()
        self.on_record.clear()
        self.claims.clear()

    @invariant()
    def live_leases_are_those_held(self) -> None:
        held = {slot: lease for slot, (lease, held) in self.on_record.items() if held}
        assert self.registry.leases() == held


@pytest.fixture
def calls(redis_server: EmbeddedRedis) -> type[Calls]:
    Calls.server = redis_server
    return Calls


def test_leases_and_claims_hold_in_any_order_of_calls(calls: type[Calls]) -> None:
    run_state_machine_as_test(
        calls, settings=settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
    )
