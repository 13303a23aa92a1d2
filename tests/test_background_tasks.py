"""Tasks that nobody awaits one by one: kept while they run, reported when they end, cancelled together."""

from __future__ import annotations

import asyncio
import gc

from tests.waiting import until
from wallaroo_spark.event_loop import BackgroundTasks


async def test_a_task_is_kept_until_it_has_ended() -> None:
    done = asyncio.Event()
    gate: asyncio.Future[None] | None = None

    async def work() -> None:
        nonlocal gate
        # Nothing but the task knows this future: without a reference to the task, both would be collected.
        gate = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(gate.set_result, None)
        await gate
        done.set()

    tasks = BackgroundTasks()
    tasks.start(work())
    gc.collect()
    await done.wait()
    await tasks.wait()
    assert gate is not None
    assert gate.done()


async def test_each_end_is_reported_with_its_error() -> None:
    ends: list[BaseException | None] = []
    tasks = BackgroundTasks(ends.append)
    fault = ZeroDivisionError("a fault")

    async def fails() -> None:
        raise fault

    async def finishes() -> None:
        pass

    async def lasts() -> None:
        await asyncio.Event().wait()

    tasks.start(fails())
    await tasks.wait()
    tasks.start(finishes())
    await tasks.wait()
    tasks.start(lasts())
    await asyncio.sleep(0)
    tasks.cancel()
    await until(lambda: len(ends) == 3)
    assert ends == [fault, None, None]


async def test_a_task_that_waits_for_the_others_does_not_wait_for_itself() -> None:
    order: list[str] = []
    tasks = BackgroundTasks()

    async def first() -> None:
        await asyncio.sleep(0)
        order.append("first")

    async def last() -> None:
        await tasks.wait()
        order.append("last")

    tasks.start(first())
    tasks.start(last())
    await tasks.wait()
    assert order == ["first", "last"]


async def test_a_wait_with_a_limit_ends_though_a_task_lasts() -> None:
    ends: list[BaseException | None] = []
    tasks = BackgroundTasks(ends.append)

    async def lasts() -> None:
        await asyncio.Event().wait()

    tasks.start(lasts())
    await tasks.wait(0.01)
    assert ends == []
    tasks.cancel()
    await until(lambda: ends == [None])
