"""The display of ``send``: a bar for each input on a terminal, a line at intervals elsewhere, and a summary."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

import click
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from wallaroo_spark.cli.common import logs_above
from wallaroo_spark.cli.send.inputs import STDIN, SendInput, standard_input_is_terminal
from wallaroo_spark.connector import Connector, FeedProgress, FeedResult
from wallaroo_spark.texts import count, size

LOOK_SECONDS = 0.2
"""Seconds between two refreshes of the display."""
_WAITS = {
    "connection": "a session with a worker",
    "credit": "credit from the worker",
    "network": "the network",
    "memory": "acknowledgements",
    "answer to NOTIFY": "the worker to open the stream",
}


@dataclass
class InputProgress:
    """The progress of one input."""

    name: str
    """The name of the input's stream: a path or a topic."""
    size: int | None
    """Bytes of the file; None for a topic and for standard input."""
    replayable: bool
    """False for standard input."""
    messages: int = 0
    """Messages sent in this run."""
    bytes: int = 0
    """Bytes sent in this run."""
    acknowledged: int | None = None
    """A byte offset for a file, a reference for a topic."""
    sent: int | None = None
    """The id of the last message that was sent in this run, of the same kind; None before it."""
    outcome: str = ""
    """``done``, ``failed``, or empty while it is being sent."""

    def take(self, counts: FeedProgress | FeedResult) -> None:
        """Its counts have changed."""
        self.messages, self.bytes, self.acknowledged = counts.messages, counts.bytes, counts.acknowledged

    def to_json(self) -> dict[str, Any]:
        """Its counts; the name of standard input is ``-``."""
        name = STDIN if self.size is None and not self.replayable else self.name
        return {"file": name, "messages": self.messages, "bytes": self.bytes, "acknowledged": self.acknowledged}


class SendView(contextlib.ExitStack):
    """Prints a line every ``every`` seconds; to standard error if ``as_json``, as the JSON goes to standard output."""

    def __init__(self, inputs: Sequence[SendInput], every: float, as_json: bool) -> None:
        super().__init__()
        self.inputs: dict[str, InputProgress] = {}
        for one in inputs:
            self.add(one)
        self._every = every
        self._as_json = as_json
        self._began = time.monotonic()
        self._last = self._began
        self._waits = ""

    def __enter__(self) -> Self:
        self.callback(self.summarize)
        return self

    def add(self, one: SendInput) -> None:
        """An input at the beginning, or a file that has appeared."""
        name = one.source.name
        self.inputs[name] = InputProgress(name, one.size, one.source.replayable)

    def progressed(self, progress: FeedProgress) -> None:
        """An input has advanced; called by the connector."""
        self.inputs[progress.name].take(progress)
        self.inputs[progress.name].sent = progress.sent

    def finished(self, name: str, result: FeedResult) -> None:
        """An input is sent and acknowledged to its end."""
        self.inputs[name].take(result)
        self.inputs[name].outcome = "done"

    def failed(self, name: str) -> None:
        """An input could not be sent to its end."""
        self.inputs[name].outcome = "failed"

    async def watch(self, connector: Connector) -> None:
        """Refresh the display at intervals, until cancelled."""
        while True:
            found = waits(connector.waiting_for, list(self.inputs.values()))
            idle = found == _WAITS["connection"] and connector.status().state == "connected"
            self._waits = "" if idle else found
            self.refresh()
            await asyncio.sleep(LOOK_SECONDS)

    def refresh(self) -> None:
        """Show how far all inputs are."""
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            waiting = f"; waits for {self._waits}" if self._waits else ""
            self.say(f"{time.strftime('%H:%M:%S')} {self._total()}{waiting}")

    def say(self, line: str) -> None:
        """Print a line."""
        click.echo(line, err=self._as_json)

    def summarize(self) -> None:
        """Print the outcome of every input, and with ``as_json`` all of them as one line of JSON."""
        seconds = time.monotonic() - self._began
        for state in self.inputs.values():
            self.say(summary(state, seconds))
        if self._as_json:
            click.echo(json.dumps(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """The outcome of each input: messages and bytes sent in this run, and the acknowledged reference."""
        states = self.inputs.values()
        return {
            "messages": sum(state.messages for state in states),
            "bytes": sum(state.bytes for state in states),
            "complete": all(state.outcome == "done" for state in states),
            "files": [state.to_json() for state in states],
        }

    def _total(self) -> str:
        states = self.inputs.values()
        sent = f"{count(sum(state.messages for state in states), 'message')} sent"
        sizes = [state for state in states if state.size is not None]
        if not sizes:
            return sent
        acknowledged = size(sum(state.acknowledged or 0 for state in sizes))
        return f"{sent}, {acknowledged} of {size(sum(_whole(state) for state in sizes))} acknowledged"


class BarView(SendView):
    """Draws a bar for each input: acknowledged bytes, bytes a second, and the reason why sending waits."""

    def __init__(self, inputs: Sequence[SendInput], every: float, as_json: bool, console: Console) -> None:
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[amount]}", justify="right", markup=False),
            _RateColumn(),
            TextColumn("{task.fields[waits]}", style="yellow", markup=False),
            console=console,
            expand=True,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        super().__init__(inputs, every, as_json)

    def __enter__(self) -> Self:
        super().__enter__()
        self.enter_context(logs_above(self._console))
        self.enter_context(self._bars)
        return self

    def add(self, one: SendInput) -> None:
        """An input more, with a bar."""
        super().add(one)
        name = one.source.name
        self._tasks[name] = self._bars.add_task(_shortened(name), total=one.size or None, amount="", waits="")

    def refresh(self) -> None:
        """Bring every bar up to date."""
        for state in self.inputs.values():
            done = state.bytes if state.size is None else (state.acknowledged or 0)
            waiting = f"waits for {self._waits}" if self._waits and not state.outcome else state.outcome
            self._bars.update(self._tasks[state.name], completed=done, amount=_amount(state), waits=waiting)

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _RateColumn(ProgressColumn):
    """Bytes a second; empty while there is no rate yet."""

    def render(self, task: Task) -> Text:
        """The text for one bar."""
        speed = task.finished_speed or task.speed
        return Text(f"{size(speed)}/s" if speed else "", style="progress.data.speed")


def make_view(inputs: Sequence[SendInput], every: float, as_json: bool) -> SendView:
    """Bars on a terminal, unless lines are typed there as input; lines elsewhere."""
    console = Console(stderr=as_json)
    typed = any(not one.source.replayable for one in inputs) and standard_input_is_terminal()
    if console.is_terminal and not typed:
        return BarView(inputs, every, as_json, console)
    return SendView(inputs, every, as_json)


def waits(obstacle: str | None, states: Collection[InputProgress]) -> str:
    """The cause for which sending waits, in words; empty: it waits for nothing but more input."""
    if obstacle is not None:
        return _WAITS.get(obstacle, obstacle)
    if all(state.outcome for state in states):
        return ""
    if not any(state.messages or state.acknowledged is not None for state in states):
        return _WAITS["connection"]
    return "Spark to commit" if any(map(_uncommitted, states)) else ""


def _uncommitted(state: InputProgress) -> bool:
    """Whether messages were sent that Spark has not committed. Those of standard input are never acknowledged."""
    return state.replayable and state.sent is not None and (state.acknowledged or 0) < state.sent


def summary(state: InputProgress, seconds: float) -> str:
    """The line that summarizes one input."""
    sent = f"{count(state.messages, 'message')} ({size(state.bytes)})"
    if state.size is None and state.replayable:
        return f"{state.name}: {sent} sent" + (" and acknowledged" if state.outcome == "done" else "; it may go on")
    if state.size is None:
        return f"{state.name}: {sent} sent, at most once" + ("" if state.outcome == "done" else "; not all of them")
    if state.outcome != "done":
        acknowledged = state.acknowledged or 0
        return (
            f"{state.name}: {sent} sent, {size(acknowledged)} of {size(_whole(state))} acknowledged; "
            f"the next run continues behind byte {acknowledged:,}"
        )
    if not state.messages:
        return f"{state.name}: nothing new; {size(state.acknowledged or 0)} are acknowledged from before"
    return f"{state.name}: {sent} sent and acknowledged in {seconds:.1f} s"


def _amount(state: InputProgress) -> str:
    if state.size is None:
        return f"{count(state.messages, 'message')} sent"
    return f"{size(state.acknowledged or 0)} of {size(_whole(state))}"


def _whole(state: InputProgress) -> int:
    """Bytes of a file as far as is known: it may have grown since sending began."""
    return max(state.size or 0, state.sent or 0, state.acknowledged or 0)


def _shortened(name: str, longest: int = 30) -> str:
    return name if len(name) <= longest else "…" + name[1 - longest :]
