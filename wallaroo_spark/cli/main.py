"""The command ``wallaroo-spark``: a group whose verbs are loaded on first use.

An error of the package is one sentence on standard error with exit status 1. A usage error has exit status 2, an
interrupt 130. A traceback appears only with ``--debug`` or ``WALLAROO_DEBUG=1``. Source: ``docs/cli.md``.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from wallaroo_spark import __version__
from wallaroo_spark.errors import WallarooError

try:
    import click
except ModuleNotFoundError:
    sys.exit("Error: the command line needs click; run: pip install 'wallaroo-spark[cli]'")

from wallaroo_spark.cli.common import DEBUG, INTERRUPTED, debug_option
from wallaroo_spark.cli.defaults import defaults

VERBS = {
    "apply": (
        "wallaroo_spark.cli.schema.apply",
        "apply",
        "Apply YAML documents to the schema of an application.",
    ),
    "call": (
        "wallaroo_spark.cli.durable.call",
        "call",
        "Call an endpoint and print the answer.",
    ),
    "check": (
        "wallaroo_spark.cli.check.command",
        "check",
        "Check everything that a receiver needs, before it is started.",
    ),
    "capture": (
        "wallaroo_spark.cli.wire.capture",
        "capture",
        "Record a connector's frames to a file, or disturb its connection.",
    ),
    "consume": (
        "wallaroo_spark.cli.durable.consume",
        "consume",
        "Print the events of a durable stream as a member of a group.",
    ),
    "decode": (
        "wallaroo_spark.cli.wire.decode",
        "decode_command",
        "Print the frames of a capture, or of plain bytes, as text or JSON.",
    ),
    "delete": (
        "wallaroo_spark.cli.schema.apply",
        "delete",
        "Delete objects of an application's schema.",
    ),
    "demo": (
        "wallaroo_spark.cli.demo",
        "demo",
        "Run the whole product on this machine and compare its output with its input.",
    ),
    "describe": (
        "wallaroo_spark.cli.schema.show",
        "describe",
        "Show one object of an application's schema in full.",
    ),
    "dev": ("wallaroo_spark.cli.dev", "dev", "Tools for authors of connectors."),
    "explain": (
        "wallaroo_spark.cli.explain",
        "explain",
        "Explain the code of an error, an alert or a cause.",
    ),
    "get": (
        "wallaroo_spark.cli.schema.show",
        "get",
        "List the objects of an application's schema.",
    ),
    "list": (
        "wallaroo_spark.cli.status.list_command",
        "list_receivers",
        "List all receivers and topics of a registry.",
    ),
    "pipelines": (
        "wallaroo_spark.cli.durable.pipelines",
        "pipelines",
        "Show pipelines and the history of their instances.",
    ),
    "publish": (
        "wallaroo_spark.cli.durable.publish",
        "publish",
        "Append events to a durable stream.",
    ),
    "receive": ("wallaroo_spark.cli.receive.command", "receive", "Run the receiver and the query of a YAML file."),
    "replay": (
        "wallaroo_spark.cli.wire.replay",
        "replay",
        "Send the messages of a capture again.",
    ),
    "run": (
        "wallaroo_spark.cli.run.command",
        "run",
        "Run an application of durable streams: its gateways and its query.",
    ),
    "send": (
        "wallaroo_spark.cli.send.command",
        "send",
        "Send the records of files, or of standard input, to a receiver.",
    ),
    "serve": (
        "wallaroo_spark.cli.durable.stage",
        "serve",
        "Answer the calls of an endpoint with a command.",
    ),
    "sink": ("wallaroo_spark.cli.sink", "sink", "Receive the rows of transactional connector sinks into files."),
    "stage": (
        "wallaroo_spark.cli.durable.stage",
        "stage",
        "Run a command for each delivery of a stage of a pipeline.",
    ),
    "status": (
        "wallaroo_spark.cli.status.command",
        "status",
        "Show a receiver or an application at a glance, topics and sinks.",
    ),
    "streams": (
        "wallaroo_spark.cli.status.streams_command",
        "streams",
        "Show the streams of a receiver, with references, lag and age.",
    ),
    "subscribe": ("wallaroo_spark.cli.subscribe", "subscribe", "Print the rows of a topic as they are published."),
    "support": (
        "wallaroo_spark.cli.support.command",
        "support",
        "Write an archive for the report of a defect, without secrets.",
    ),
    "token": (
        "wallaroo_spark.cli.durable.token",
        "token",
        "Create, list and revoke the tokens of an application.",
    ),
    "top": ("wallaroo_spark.cli.status.top_command", "top", "Watch a receiver live, by slot, instance and stream."),
    "validate": (
        "wallaroo_spark.cli.receive.validate",
        "validate",
        "Check a YAML file of receive, and name each problem with its line.",
    ),
    "tap": ("wallaroo_spark.cli.tap", "tap", "Show live messages of a stream without consuming them."),
}
"""Verb → (module, name of the click command, line in the help), so that the help loads no verb."""

EXTRAS = {
    "pyspark": "spark",
    "msgpack": "pubsub",
    "pyarrow": "worker",
    "pandas": "worker",
    "numpy": "worker",
    "redis": "registry",
    "grpc": "client",
    "google": "client",
    "rich": "cli",
    "yaml": "cli",
}
"""Package → the extra of this package that installs it."""


class Verbs(click.Group):
    """The group of the verbs in :data:`VERBS`; it shows an error as one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs that are installed."""
        return [verb for verb, (module, _, _) in VERBS.items() if importlib.util.find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return one verb; None when there is no such verb."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, name, _ = VERBS[cmd_name]
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise _missing(error) from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; its options get their defaults from the environment and the profile (:mod:`.defaults`)."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            ctx.default_map = {name: defaults(command, str(ctx.params.get("context") or ""))}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with the lines of the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, VERBS[verb][2]) for verb in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; show its error as one sentence and exit with the error's status."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                # The reader of standard output has closed it; click ends without a message.
                raise
            if ctx.find_root().meta.get(DEBUG):
                traceback.print_exception(error)
            raise _sentence(error) from error


def _sentence(error: Exception) -> click.ClickException:
    if isinstance(error, WallarooError):
        return click.ClickException(str(error))
    if isinstance(error, ModuleNotFoundError) and _package(error) in EXTRAS:
        return _missing(error)
    first = (str(error).splitlines() or [""])[0][:300]
    problem = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return click.ClickException(
        f"this is a defect of wallaroo-spark ({problem}); "
        "run it again with --debug to get the traceback, and report that"
    )


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").split(".")[0]


def _missing(error: ModuleNotFoundError) -> click.ClickException:
    package = _package(error)
    if package not in EXTRAS:
        raise error
    return click.ClickException(
        f"this needs {package}, which is not installed; run: pip install 'wallaroo-spark[{EXTRAS[package]}]'"
    )


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="wallaroo-spark")
@click.option("--context", default="", metavar="NAME", help="The profile that gives defaults (also WALLAROO_CONTEXT).")
@debug_option
def cli(context: str) -> None:
    """Push streams of records straight into Spark Structured Streaming, acknowledged by its checkpoint."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit status."""
    cli(args=None if arguments is None else list(arguments), prog_name="wallaroo-spark")


if __name__ == "__main__":
    main()
