"""``wallaroo-spark send``: the records of files, or of standard input, to a receiver; needs no Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import TERMINATED, debug_option
from wallaroo_spark.errors import WallarooError

if TYPE_CHECKING:
    from wallaroo_spark.cli.send_view import SendView
    from wallaroo_spark.connector import Connector, Source

STDIN = "-"
TOPIC = "topic:"


@dataclass(frozen=True)
class Delivery:
    """One file, topic or standard input on its way: ``size`` is its bytes now, None where that is not known."""

    source: Source
    size: int | None


class _Readable(click.Path):
    """A file that is there, ``-``, or ``topic:NAME``."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Topics are looked up later."""
        return value if str(value).startswith(TOPIC) else super().convert(value, param, ctx)


@click.command(short_help="Send the records of files, or of standard input, to a receiver.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...|topic:NAME|-", type=_Readable())
@click.option("--workers", default="", metavar="HOST:PORT,…", help="Addresses of one or more workers.")
@click.option("--registry", default="", metavar="URL", help="Redis where the workers are looked up; also env:, file:.")
@click.option("--receiver", default="", metavar="NAME", help="The receiver's name; needed with --registry.")
@click.option(
    "--instance",
    default=socket.gethostname,
    show_default="this host's name",
    help="What the receiver knows these streams by: the same from run to run, and in one program at a time.",
)
@click.option("--cookie", default="", metavar="COOKIE", help="The receiver's cookie; env:NAME or file:PATH hide it.")
@click.option("--protocol-version", default="0.0.1", show_default=True, help="The receiver's option version.")
@click.option(
    "--revision", type=click.Choice(["draft-be", "draft-le", "v3"]), default="draft-be", show_default=True,
    help="Revision of the protocol to speak.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Wait for more at the end of a file or topic, until interrupted.")
@click.option("--framed", is_flag=True, help="Records are a big-endian u32 length and so many bytes, not lines.")
@click.option("--tls", is_flag=True, help="Use TLS, with the authorities that this system trusts.")
@click.option("--tls-ca", default="", metavar="FILE", help="PEM file of the authority of the workers' certificates.")
@click.option("--tls-certificate", default="", metavar="FILE", help="PEM file of the certificate to present.")
@click.option("--tls-key", default="", metavar="FILE", help="PEM file with the key of --tls-certificate.")
@click.option("--topic-registry", default="", metavar="URL", help="Redis where topics are found; else --registry's.")
@click.option("--topic-cookie", default="", metavar="COOKIE", help="The cookie of topics; env:NAME or file:PATH.")
@click.option("--topic-tls-ca", default="", metavar="FILE", help="PEM file of the authority of topics' publishers.")
@click.option(
    "--topic-value", type=click.Choice(["json", "arrow"]), default="json", show_default=True,
    help="A message has a row as a JSON object, or some rows as an Arrow IPC stream.",
)  # fmt: skip
@click.option(
    "--give-up-after", default=300.0, show_default=True, metavar="SECONDS", help="Longest time without a session."
)
@click.option(
    "--drain-timeout", default=300.0, show_default=True, metavar="SECONDS", type=click.FloatRange(min=0, min_open=True),
    help="Longest time without an acknowledgement once everything is sent.",
)  # fmt: skip
@click.option("--every", default=5.0, show_default=True, help="Seconds between lines where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON on standard output.")
@debug_option
def send(
    files: tuple[str, ...],
    every: float,
    as_json: bool,
    follow: bool,
    framed: bool,
    drain_timeout: float,
    **settings: Any,
) -> None:
    """Send the lines of each FILE as a stream of its own, the rows of a topic, or the lines of standard input (-).

    A line is sent byte for byte without its newline. What was acknowledged in an earlier run is not sent again: a file
    goes on where it was, and so does a topic that still keeps what follows. Standard input cannot be read again, so its
    lines are delivered at most once. The exit status is 0 only when everything is acknowledged, which is when Spark has
    committed it.
    """
    from wallaroo_spark.cli.send_view import make_view

    _check(files, follow, framed, settings)
    deliveries = [
        _topic(file, follow, settings) if file.startswith(TOPIC) else _delivery(file, follow, framed) for file in files
    ]
    connector = _connector(settings)
    with make_view(deliveries, every, as_json) as view:
        try:
            asyncio.run(_send(connector, deliveries, view, drain_timeout))
        except asyncio.CancelledError:
            raise click.exceptions.Exit(TERMINATED) from None


def _check(files: Sequence[str], follow: bool, framed: bool, settings: dict[str, Any]) -> None:
    if bool(settings["workers"]) == bool(settings["registry"]):
        raise click.UsageError("give either --workers host:port, or --registry URL and --receiver NAME")
    if settings["registry"] and not settings["receiver"]:
        raise click.UsageError("--registry needs --receiver NAME, for a registry may serve several")
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise click.UsageError(f"{twice} is given twice, and is one stream; leave one")
    if STDIN in files and (framed or follow):
        raise click.UsageError("standard input is read as lines to its end; leave --framed and --follow to files")
    if any(file.startswith(TOPIC) for file in files) and not (settings["topic_registry"] or settings["registry"]):
        raise click.UsageError("topics are found in a registry; give --topic-registry URL")


def _delivery(file: str, follow: bool, framed: bool) -> Delivery:
    from wallaroo_spark.connector import Framed, Lines, Stdin

    if file == STDIN:
        return Delivery(Stdin(), None)
    kind = Framed if framed else Lines
    return Delivery(kind(file, follow=follow), os.stat(file).st_size)


def _topic(file: str, follow: bool, settings: dict[str, Any]) -> Delivery:
    from wallaroo_spark.pubsub import TopicSource

    source = TopicSource(
        file.removeprefix(TOPIC),
        registry=settings["topic_registry"] or settings["registry"],
        cookie=settings["topic_cookie"],
        value=settings["topic_value"],
        tls_ca=settings["topic_tls_ca"],
        name=settings["instance"],
        reopen=follow,
        wait=settings["give_up_after"] if follow else 0.0,
        lost_after=settings["give_up_after"],
    )
    return Delivery(source, None)


def _connector(settings: dict[str, Any]) -> Connector:
    from wallaroo_spark.connector import Backoff, Connector
    from wallaroo_spark.transport import client_context

    own = settings["tls_ca"] or settings["tls_certificate"] or settings["tls_key"]
    return Connector(
        settings["receiver"] or "wallaroo-spark",
        instance=settings["instance"],
        workers=settings["workers"],
        registry=settings["registry"] or None,
        cookie=settings["cookie"],
        version=settings["protocol_version"],
        revision=settings["revision"],
        tls=client_context() if settings["tls"] and not own else None,
        ca=settings["tls_ca"],
        certificate=settings["tls_certificate"],
        key=settings["tls_key"],
        retry=Backoff(give_up_after=settings["give_up_after"]),
    )


async def _send(connector: Connector, deliveries: Sequence[Delivery], view: SendView, drain_timeout: float) -> None:
    """Feed all of them at once. One that fails leaves the others to their end; its error is raised then.

    SIGTERM cancels it, so that the connection is closed in good order.
    """
    this = asyncio.current_task()
    assert this is not None
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with connector:
        watching = asyncio.create_task(view.watch(connector))
        try:
            outcomes = await asyncio.gather(
                *(_feed(connector, delivery, view, drain_timeout) for delivery in deliveries), return_exceptions=True
            )
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise _joined(errors)


async def _feed(connector: Connector, delivery: Delivery, view: SendView, drain_timeout: float) -> None:
    name = delivery.source.name
    try:
        result = await connector.feed(delivery.source, progress=view.progressed, drain_timeout=drain_timeout)
    except Exception:
        view.failed(name)
        raise
    view.finished(name, result)


def _joined(errors: Sequence[BaseException]) -> BaseException:
    """One error for all: what ended the connector is the same for each of its streams."""
    messages = list(dict.fromkeys(str(error) for error in errors))
    if len(messages) == 1 or not all(isinstance(error, WallarooError) for error in errors):
        return errors[0]
    return WallarooError("; ".join(messages))


def standard_input_is_terminal() -> bool:
    """Whether a person types the lines, so that nothing may be drawn over them."""
    return sys.stdin is not None and sys.stdin.isatty()
