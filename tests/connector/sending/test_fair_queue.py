"""Waiting in order."""

from __future__ import annotations

import asyncio

from wallaroo_spark.connector.sending.send_batches import FairQueue


class Gate:
    """A queue with a number of tickets, and who has passed it."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.tickets = 0
        self.passed: list[str] = []

    def enter(self, name: str, also: bool = True, place: int | None = None) -> asyncio.Task[int]:
        async def take() -> int:
            had = await self.queue.wait(lambda: also and self.tickets > 0, place)
            self.tickets -= 1
            self.passed.append(name)
            return had

        return asyncio.create_task(take())

    async def hand_out(self, tickets: int) -> None:
        self.tickets += tickets
        self.queue.wake_next()
        for _ in range(10 + 5 * tickets):
            await asyncio.sleep(0)


class TestFairQueue:
    async def test_waiters_pass_in_the_order_in_which_they_came(self) -> None:
        gate = Gate()
        tasks = [gate.enter(name) for name in "abc"]
        await gate.hand_out(0)
        await gate.hand_out(2)
        assert gate.passed == ["a", "b"]
        await gate.hand_out(1)
        assert gate.passed == ["a", "b", "c"]
        assert all(task.done() for task in tasks)
        assert not gate.queue.contended

    async def test_a_waiter_whose_condition_does_not_hold_is_skipped_and_keeps_its_place(self) -> None:
        gate = Gate()
        stuck = gate.enter("stuck", also=False)
        passing = gate.enter("passing")
        await gate.hand_out(1)
        assert gate.passed == ["passing"]
        assert passing.done()
        assert gate.queue.contended
        stuck.cancel()
        await asyncio.wait([stuck])
        assert not gate.queue.contended

    async def test_a_waiter_that_may_pass_is_not_delayed_by_those_that_may_not(self) -> None:
        gate = Gate()
        gate.tickets = 1
        stuck = gate.enter("stuck", also=False)
        await asyncio.sleep(0)
        await gate.enter("passing")
        assert gate.passed == ["passing"]
        stuck.cancel()

    async def test_a_waiter_cancelled_after_waking_passes_its_turn_on(self) -> None:
        gate = Gate()
        first, second = gate.enter("first"), gate.enter("second")
        await asyncio.sleep(0)
        gate.tickets = 1
        gate.queue.wake_next()
        first.cancel()
        await second
        assert gate.passed == ["second"]
        assert first.cancelled()

    async def test_a_woken_waiter_whose_condition_no_longer_holds_waits_at_the_front(self) -> None:
        gate = Gate()
        first, second = gate.enter("first"), gate.enter("second")
        await asyncio.sleep(0)
        gate.tickets = 1
        gate.queue.wake_next()
        gate.tickets = 0
        await asyncio.sleep(0)
        await gate.hand_out(2)
        assert gate.passed == ["first", "second"]
        assert first.done()
        assert second.done()

    async def test_a_waiter_with_an_unfinished_turn_goes_before_all_later_ones(self) -> None:
        gate = Gate()
        first, second, _third = (gate.enter(name) for name in ("first", "second", "third"))
        await gate.hand_out(2)
        assert gate.passed == ["first", "second"]
        places = await first, await second
        gate.enter("second again", place=places[1])
        gate.enter("first again", place=places[0])
        await gate.hand_out(0)
        await gate.hand_out(3)
        assert gate.passed[2:] == ["first again", "second again", "third"]
