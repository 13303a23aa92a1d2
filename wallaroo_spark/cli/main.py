"""The command ``wallaroo-spark``: a group whose verbs are loaded on first use.

An error of the package is one sentence on standard error with exit status 1. A usage error has exit status 2, an
interrupt 130. A traceback appears only with ``--debug`` or ``WALLAROO_DEBUG=1``. Source: ``docs/cli.md``.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import sys
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wallaroo_spark import __version__
from wallaroo_spark.errors import PackageMissingError, WallarooError
from wallaroo_spark.extras import command, missing

try:
    import click
except ModuleNotFoundError:
    sys.exit(f"Error: the command line needs click; run: {command(['cli'])}")

from wallaroo_spark.cli.common import DEBUG, INTERRUPTED, debug_option, reason_of
from wallaroo_spark.cli.defaults import besides, defaults

ROOM = "wallaroo_spark.cli"
GROUPS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("verbs.toml").read_text(encoding="utf-8")
)
"""Heading in the help → verb → its row: the module below this room, the line in the help, and the extras.

So the help loads no verb.
"""
VERBS = {verb: row for verbs in GROUPS.values() for verb, row in verbs.items()}


class Verbs(click.Group):
    """The group of the verbs in :data:`VERBS`; it shows an error as one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return one verb; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        row = VERBS[cmd_name]
        try:
            names = vars(importlib.import_module(f"{ROOM}.{row['module']}"))
        except (ModuleNotFoundError, PackageMissingError) as error:
            raise _missing(error, cmd_name) from error
        command = next(one for one in names.values() if isinstance(one, click.Command) and one.name == cmd_name)
        command.short_help = row["line"]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; its options get their defaults from the environment and the profile (:mod:`.defaults`)."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            found = defaults(command, str(ctx.params.get("context") or ""))
            ctx.default_map = {name: besides(found, rest)}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by subject, with the lines of the table."""
        width = max(map(len, VERBS))
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(f"{verb:{width}}", row["line"]) for verb, row in verbs.items()])

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
            raise _sentence(error, str(ctx.invoked_subcommand or "")) from error


def _sentence(error: Exception, verb: str) -> click.ClickException:
    if isinstance(error, ModuleNotFoundError | PackageMissingError):
        with contextlib.suppress(ModuleNotFoundError):
            return _missing(error, verb)
    if isinstance(error, WallarooError):
        return click.ClickException(str(error))
    return click.ClickException(
        f"this is a defect of wallaroo-spark ({reason_of(error)}); "
        "run it again with --debug to get the traceback, and report that"
    )


def needs_of(verb: str) -> list[tuple[str, ...]]:
    """The sets of extras that a verb needs, by what it is asked."""
    return [tuple(extras) for extras in VERBS.get(verb, {}).get("needs", ())]


def _missing(error: ImportError, verb: str) -> click.ClickException:
    """The sentence for a package that is not installed. Raises the error when no extra installs it."""
    found = missing(error, f"wallaroo-spark {verb}", *needs_of(verb))
    if found is None:
        raise error
    return click.ClickException(str(found))


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
