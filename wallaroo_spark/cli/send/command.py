"""``wallaroo-spark send``: sends the records of files, topics or standard input to a receiver; needs no Spark."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import INTERRUPTED, TERMINATED
from wallaroo_spark.cli.defaults import connection_settings, setting_flag, tls_options
from wallaroo_spark.cli.send.inputs import (
    LONGEST_LINE,
    STDIN,
    TOPIC,
    InputName,
    Interrupts,
    NewFiles,
    SendInput,
    expand,
    is_pattern,
    open_input,
)
from wallaroo_spark.connector import Backoff
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.sources.files import TOO_LONG
from wallaroo_spark.errors import WallarooError

NEW_FILES_SECONDS = 1.0
"""Seconds between two looks for new files of a pattern. A choice: listing a folder costs little."""

if TYPE_CHECKING:
    from wallaroo_spark.cli.send.view import SendView
    from wallaroo_spark.connector import Connector


@click.command(
    epilog="""\b
Examples:
  wallaroo-spark send orders.jsonl --workers host-a:7100,host-b:7101 --cookie env:COOKIE
  wallaroo-spark send /var/log/app.log --follow --stream app --workers host-a:7100
  wallaroo-spark send '/var/log/*.log' --follow --registry redis://… --receiver logs""",
)
@click.argument("names", nargs=-1, required=True, metavar="FILE...|PATTERN|topic:NAME|-", type=InputName())
@setting_flag(ConnectorSettings, "workers", metavar="HOST:PORT,…")
@setting_flag(ConnectorSettings, "registry", metavar="URL", default="")
@click.option("--receiver", default="", metavar="NAME", help="The receiver's name; needed with --registry.")
@setting_flag(ConnectorSettings, "instance", default=socket.gethostname, show_default="this host's name")
@setting_flag(ConnectorSettings, "cookie", metavar="COOKIE")
@setting_flag(ConnectorSettings, "version", "--protocol-version")
@setting_flag(ConnectorSettings, "revision")
@click.option(
    "--follow", is_flag=True,
    help="Wait for more at the end of a file or topic, until interrupted; a file also across rotations.",
)  # fmt: skip
@click.option(
    "--stream", default="", metavar="NAME", help="Name of the stream of the one input; else the path as it is given."
)
@click.option(
    "--long-lines", type=click.Choice(TOO_LONG), default="error", show_default=True,
    help=f"End with an error at a line of more than {LONGEST_LINE:,} bytes, or leave it out, or cut it.",
)  # fmt: skip
@click.option(
    "--positions", default="", metavar="DIR",
    help="With --follow: folder of the small files that say where rotated files begin.  "
    "[default: ~/.local/state/wallaroo-spark/positions]",
)  # fmt: skip
@click.option("--framed", is_flag=True, help="A record is a big-endian u32 length and that many bytes, and not a line.")
@tls_options
@click.option("--topic-registry", default="", metavar="URL", help="Redis where topics are found; else --registry's.")
@click.option("--topic-cookie", default="", metavar="COOKIE", help="The cookie of topics; env:NAME or file:PATH.")
@click.option("--topic-tls-ca", default="", metavar="FILE", help="PEM file of the authority of topics' publishers.")
@click.option(
    "--topic-value", type=click.Choice(["json", "arrow"]), default="json", show_default=True,
    help="A message has a row as a JSON object, or some rows as an Arrow IPC stream.",
)  # fmt: skip
@setting_flag(Backoff, "give_up_after", metavar="SECONDS")
@click.option(
    "--drain-timeout", default=300.0, show_default=True, metavar="SECONDS", type=click.FloatRange(min=0, min_open=True),
    help="Longest time without an acknowledgement once everything is sent.",
)  # fmt: skip
@click.option("--every", default=5.0, show_default=True, help="Seconds between lines where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON on standard output.")
def send(
    names: tuple[str, ...],
    every: float,
    as_json: bool,
    follow: bool,
    framed: bool,
    drain_timeout: float,
    **settings: Any,
) -> None:
    """Send the lines of each FILE as a stream of its own, the rows of a topic, or the lines of standard input (-).

    A line is sent byte for byte without its newline. Messages that were acknowledged in an earlier run are not sent
    again: a file, or a topic that still retains the following batches, continues after them. Standard input cannot be
    read again, so its lines are delivered at most once. The exit status is 0 only when everything is acknowledged,
    which is when Spark has committed it.

    With --follow a file stays one stream across rotations, by renaming or by copying and truncating, also when this
    command is stopped or killed meanwhile, as long as the rotated files are beside it and not compressed (logrotate:
    delaycompress). New files of a PATTERN (quote it) are sent as they appear, and a deleted one ends its stream.

    Ctrl-C closes the session and says how much of each input is acknowledged, which is where the next run continues. A
    second Ctrl-C ends at once.
    """
    from wallaroo_spark.cli.send.view import make_view

    files = expand(names, follow=follow)
    _check(names, files, follow, framed, settings)
    patterns = [name for name in names if is_pattern(name)]
    inputs = [open_input(file, follow=follow, framed=framed, options=settings) for file in files]
    connector = _connector(settings)
    with make_view(inputs, every, as_json) as view, Interrupts() as interrupts:
        new = NewFiles(patterns, files, framed, settings) if follow and patterns else None
        try:
            asyncio.run(_send(connector, inputs, view, drain_timeout, interrupts, new))
        except asyncio.CancelledError:
            status = INTERRUPTED if interrupts.received == signal.SIGINT else TERMINATED
            raise click.exceptions.Exit(status) from None


def _check(names: Sequence[str], files: Sequence[str], follow: bool, framed: bool, settings: dict[str, Any]) -> None:
    if bool(settings["workers"]) == bool(settings["registry"]):
        raise click.UsageError("give either --workers host:port, or --registry URL and --receiver NAME")
    if settings["registry"] and not settings["receiver"]:
        raise click.UsageError("--registry needs --receiver NAME, because a registry may serve several receivers")
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise click.UsageError(f"{twice} is given twice, but one input is one stream; give it once")
    if settings["stream"] and (len(names) != 1 or is_pattern(names[0]) or names[0].startswith(TOPIC)):
        raise click.UsageError("--stream names the stream of one file or of standard input; give exactly one")
    if STDIN in files and (framed or follow):
        raise click.UsageError("standard input is read as lines, to its end; use --framed and --follow with files only")
    if any(file.startswith(TOPIC) for file in files) and not (settings["topic_registry"] or settings["registry"]):
        raise click.UsageError("topics are found in a registry; give --topic-registry URL")


def _connector(settings: dict[str, Any]) -> Connector:
    from wallaroo_spark.connector import Connector

    return Connector(
        settings["receiver"] or "wallaroo-spark",
        instance=settings["instance"],
        workers=settings["workers"],
        registry=settings["registry"] or None,
        cookie=settings["cookie"],
        version=settings["protocol_version"],
        revision=settings["revision"],
        **connection_settings(settings),
    )


async def _send(
    connector: Connector,
    inputs: Sequence[SendInput],
    view: SendView,
    drain_timeout: float,
    interrupts: Interrupts,
    new: NewFiles | None,
) -> None:
    """Feed all inputs at the same time. If one fails, the others are still sent to their end; then its error is raised.

    A signal cancels it, so that the connection is closed in order.
    """
    interrupts.task = asyncio.current_task()
    async with connector:
        watching = asyncio.create_task(view.watch(connector))
        feeding = {asyncio.create_task(_feed(connector, one, view, drain_timeout)) for one in inputs}
        try:
            errors = await (
                _all(feeding) if new is None else _all_and_new(feeding, new, connector, view, drain_timeout)
            )
        finally:
            for task in (watching, *feeding):
                task.cancel()
            await asyncio.wait([watching, *feeding])
    if errors:
        raise _joined(errors)


async def _all(feeding: set[asyncio.Task[None]]) -> list[BaseException]:
    outcomes = await asyncio.gather(*feeding, return_exceptions=True)
    return [outcome for outcome in outcomes if isinstance(outcome, BaseException)]


async def _all_and_new(
    feeding: set[asyncio.Task[None]], new: NewFiles, connector: Connector, view: SendView, drain_timeout: float
) -> list[BaseException]:
    """Feed also the files that appear, until one input fails."""
    while True:
        for one in new.look():
            view.add(one)
            feeding.add(asyncio.create_task(_feed(connector, one, view, drain_timeout)))
        ended, _ = await asyncio.wait(
            [*feeding, asyncio.create_task(asyncio.sleep(NEW_FILES_SECONDS))], return_when=asyncio.FIRST_COMPLETED
        )
        feeding -= ended
        errors = [error for task in ended if (error := task.exception()) is not None]
        if errors:
            return errors


async def _feed(connector: Connector, one: SendInput, view: SendView, drain_timeout: float) -> None:
    name = one.source.name
    try:
        result = await connector.feed(one.source, progress=view.progressed, drain_timeout=drain_timeout)
    except Exception:
        view.failed(name)
        raise
    view.finished(name, result)


def _joined(errors: Sequence[BaseException]) -> BaseException:
    """One error for all inputs. An error that has ended the connector is the same for each input."""
    different = {str(error): error for error in errors}
    ours = [error for error in different.values() if isinstance(error, WallarooError)]
    if len(different) == 1 or len(ours) < len(different):
        return errors[0]
    *others, last = ours
    return WallarooError("; ".join([*map(str, others), last.message]), code=last.code)
