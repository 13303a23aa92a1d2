"""Waiting for a ticket in an event loop, with a limit."""

from __future__ import annotations

import asyncio

from wallaroo_spark.doors.tickets import Ticket


async def kept(ticket: Ticket, seconds: float) -> bool:
    """Wait for a ticket, for some seconds at most; returns whether it is kept."""
    if ticket.kept is None and seconds > 0:
        loop = asyncio.get_running_loop()
        # As asyncio.wait_for on an event, at half its price.
        over: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        ticket.when_done(end)
        timer = loop.call_later(seconds, end)
        try:
            await over
        finally:
            timer.cancel()
            ticket.forget(end)
    return ticket.kept is True
