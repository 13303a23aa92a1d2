"""``wallaroo-spark stage``, ``serve`` and ``call``: commands that work on a stage or answer calls, and a call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import click

from wallaroo_spark.cli.durable.events import GatewayOptions, event_as_json, shown_data
from wallaroo_spark.cli.signals import on_signals, status_of
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.json_text import dump_json, json_line, load_json

if TYPE_CHECKING:
    from wallaroo_spark.client import AsyncClient, Output, ServedCall, StageWork

_LAST = 300
"""The most characters of a program's errors that the reason of a failure has. A choice: a line or two."""


async def run_command(command: str, given: dict[str, Any], environment: dict[str, str]) -> bytes:
    """Run a command in a shell; ``given`` is its standard input, as JSON. Returns its standard output.

    Raises RuntimeError with the end of its standard error when it fails. A cancellation ends its process group.
    """
    program = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        output, errors = await program.communicate(dump_json(given))
    except asyncio.CancelledError:
        if program.returncode is None:
            os.killpg(program.pid, signal.SIGTERM)
        raise
    if program.returncode:
        said = errors.decode(errors="replace").strip()[-_LAST:]
        raise RuntimeError(f"the command ended with status {program.returncode}{': ' if said else ''}{said}")
    return output


def value_of(output: bytes) -> Any:
    """The output of a program: a JSON value, or a text without its last line end, or bytes; None for nothing."""
    if not output:
        return None
    with contextlib.suppress(ValueError):
        return load_json(output)
    with contextlib.suppress(UnicodeDecodeError):
        return output.decode().removesuffix("\n")
    return output


def plain(value: Any, data: bytes) -> Any:
    """A decoded payload as JSON has it. Bytes become text, with replacements, and so does what JSON reads and cannot
    write, such as 1e400."""
    with contextlib.suppress(ValueError, TypeError):
        dump_json(value)
        return value
    return data.decode(errors="replace")


@verb()
def stage(
    pipeline: str,
    stage: str,
    *,
    command: Annotated[str, "--exec"],
    concurrency: Annotated[int, click.IntRange(1)] = 1,
    streams: bool = False,
    gateways: GatewayOptions,
    as_json: Json = False,
) -> None:
    """Work on STAGE of PIPELINE with a command, for ever.

    The command reads {"instance": …, "partition": …, "root_event": …, "outputs": {…}} from standard input; the event is
    in the JSON format of CloudEvents. Its standard output is the stage's output: JSON, or text. When it fails, the work
    is given to a member again. Instance, partition and stage are in WALLAROO_INSTANCE, WALLAROO_PARTITION and
    WALLAROO_STAGE, too.

    Options:
        --exec CMD: The command, run by the shell.
        --concurrency: Most commands at once.
        --streams: The command prints {"output": …, "streams": {"shop/paid": [{"type": …}]}}.
        --json: Print a line of JSON for each delivery.

    Examples:
        wallaroo-spark stage shop/fulfil charge --exec 'jq -c "{paid: .root_event.data.price}"'
    """
    from wallaroo_spark.client import StageFunction

    settings = gateways.settings()

    async def function(work: StageWork) -> Any:
        with _reported(as_json, {"partition": work.partition, "instance": work.instance}):
            return await _run_stage(work, command, streams)

    declared = StageFunction(pipeline, stage, function, concurrency)
    asyncio.run(_until_signal(settings, lambda client: client.work(declared)))


@verb()
def serve(
    endpoint: str,
    *,
    command: Annotated[str, "--exec"],
    concurrency: Annotated[int, click.IntRange(1)] = 1,
    gateways: GatewayOptions,
    as_json: Json = False,
) -> None:
    """Serve ENDPOINT with a command, for ever.

    The command reads the event of the call from standard input, in the JSON format of CloudEvents. Its standard output
    is the payload of the answer: JSON, or text. When it fails, the call fails with the end of its standard error.

    Options:
        --exec CMD: The command, run by the shell.
        --concurrency: Most commands at once.
        --json: Print a line of JSON for each call.

    Examples:
        wallaroo-spark serve shop/price --exec 'jq -c "{price: (.data.order * 2)}"'
    """
    from wallaroo_spark.client.events import to_structured

    settings = gateways.settings()

    async def function(call: ServedCall) -> Any:
        with _reported(as_json, {"id": call.event.id, "type": call.event.type}):
            return value_of(await run_command(command, to_structured(call.event), {"WALLAROO_ENDPOINT": endpoint}))

    asyncio.run(_until_signal(settings, lambda client: client.serve(endpoint, function, concurrency=concurrency)))


@contextlib.contextmanager
def _reported(as_json: bool, given: dict[str, Any]) -> Iterator[None]:
    """Print a line when the command has ended; ``error`` is null unless it has failed."""
    error: str | None = None
    try:
        yield
    except Exception as failure:
        error = str(failure)
        raise
    finally:
        if as_json:
            click.echo(json_line({**given, "error": error}))


async def _run_stage(work: StageWork, command: str, streams: bool) -> Any:
    from wallaroo_spark.client.events import to_structured

    given = {
        "instance": work.instance,
        "partition": work.partition,
        "birth": work.birth,
        "root_event": None if work.root_event is None else to_structured(work.root_event),
        "outputs": {name: plain(value, work.payloads[name][0]) for name, value in work.outputs.items()},
    }
    environment = {
        "WALLAROO_INSTANCE": str(work.instance),
        "WALLAROO_PARTITION": str(work.partition),
        "WALLAROO_STAGE": work.stage,
    }
    found = value_of(await run_command(command, given, environment))
    return _with_streams(found) if streams else found


def _with_streams(found: Any) -> Output:
    from wallaroo_spark.client import Output
    from wallaroo_spark.client.events import from_structured

    if not isinstance(found, dict) or not found.keys() <= {"output", "streams"}:
        raise ValueError('with --streams the command prints {"output": …, "streams": {…}}')
    events = {
        stream: [from_structured(dict(event), f"an event for {stream}") for event in some]
        for stream, some in dict(found.get("streams") or {}).items()
    }
    return Output(found.get("output"), streams=events)


async def _until_signal(settings: dict[str, Any], work: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """Work until SIGINT or SIGTERM, which let running commands finish; the exit status tells the signal."""
    from wallaroo_spark.client import AsyncClient

    seen: list[int] = []
    loop = asyncio.get_running_loop()
    async with AsyncClient(**settings) as client:

        def note(number: int) -> None:
            if not seen:
                click.echo(f"{signal.Signals(number).name}: finishing.", err=True)
            seen.append(number)
            loop.call_soon_threadsafe(client.stop)

        with on_signals(note):
            await work(client)
    if seen:
        raise click.exceptions.Exit(status_of(seen[0]))


@verb()
def call(
    endpoint: str,
    *,
    kind: Annotated[str, "--type"] = "call",
    data: str = "",
    timeout: float = 60.0,
    gateways: GatewayOptions,
    as_json: Json = False,
) -> None:
    """Call ENDPOINT with one event, and print the events of its answer; it fails at once when nothing serves it.

    Options:
        --type TYPE: Type of the event.
        --data TEXT: Payload of the event; - reads it from standard input.
        --timeout SECONDS: Longest wait for the answer.
        --json: Print the events in the JSON format of CloudEvents.

    Examples:
        wallaroo-spark call shop/price --data '{"order": 17}'
    """
    from wallaroo_spark.client import Event

    payload = sys.stdin.buffer.read() if data == "-" else data.encode("utf-8", "surrogateescape")
    with gateways.client() as client:
        for answer in client.call_stream(endpoint, Event(kind, value_of(payload)), timeout=timeout):
            click.echo(event_as_json(answer) if as_json else shown_data(answer))
