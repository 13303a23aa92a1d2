"""The command ``wallaroo-spark``: a group whose verbs are loaded on first use.

An error of the package is one sentence on standard error with exit status 1. A usage error has exit status 2, an
interrupt 130. A traceback appears only with ``--debug`` or ``WALLAROO_DEBUG=1``.

An option on the command line comes first, then its environment variable, then the profile, then its own default.
Profiles stand in a TOML file of the user, ``$WALLAROO_CONFIG`` or ``wallaroo-spark/config.toml`` in
``$XDG_CONFIG_HOME`` (``~/.config``)::

    context = "test"              # the profile without --context

    [contexts.test]
    registry = "redis://redis.test:6379"
    receiver = "orders"

    [contexts.test.send]          # only for the verb send
    cookie = "env:ORDERS_COOKIE"

Source: ``docs/cli.md``.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import tomllib
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wallaroo_spark import __version__
from wallaroo_spark.errors import ConfigurationError, PackageMissingError, WallarooError
from wallaroo_spark.extras import command, missing

try:
    import click
except ModuleNotFoundError:
    sys.exit(f"Error: the command line needs click; run: {command(['cli'])}")

from wallaroo_spark.cli.common import DEBUG, INTERRUPTED, debug_option, reason_of

CONTEXT = "WALLAROO_CONTEXT"
"""The environment variable with the name of the profile."""
CONFIG = "WALLAROO_CONFIG"
"""The environment variable with the path of the profiles' file."""
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""Errors of the system that say something of the user's folder, and nothing of this program."""
VARIABLES = {
    name: f"WALLAROO_{name.upper()}"
    for name in (
        "registry",
        "receiver",
        "checkpoint",
        "workers",
        "cookie",
        "instance",
        "token",
        "tls",
        "tls_ca",
        "app",
        "gateway",
        "application",
    )
}
"""Option (its parameter's name) → environment variable. Others have none: a cluster manager may set similar names."""


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The file of the profiles; it need not exist."""
    if given := environment.get(CONFIG, ""):
        return Path(given).expanduser()
    home = environment.get("XDG_CONFIG_HOME", "") or "~/.config"
    return Path(home).expanduser() / "wallaroo-spark" / "config.toml"


def defaults(command: click.Command, context: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The defaults of a verb's options, by their parameters' names; of a group, those of its verbs by their names.

    ``context`` is the name of the profile; empty: that of the environment, or of the file. Raises
    :class:`ConfigurationError` for a file or a profile that cannot be used.
    """
    if isinstance(command, click.Group):
        # The profile's table of a group's verb has the verb's own name, as in contexts.test.up for "dev up".
        return {name: defaults(verb, context, environment) for name, verb in command.commands.items()}
    options = {option.name: option for option in command.params if isinstance(option, click.Option) and option.name}
    found = _of_profile(command.name or "", options, context, environment)
    for name, variable in VARIABLES.items():
        if name in options and environment.get(variable, ""):
            found[name] = environment[variable]
    return found


def besides(found: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """The defaults without the registry where the arguments name the workers, and without these where they name it.

    They are two ways to one receiver, of which a verb takes one.
    """
    words = {word.partition("=")[0] for word in given}
    left_out = {other for way, other in (("workers", "registry"), ("registry", "workers")) if f"--{way}" in words}
    return {
        name: besides(value, given) if isinstance(value, Mapping) else value
        for name, value in found.items()
        if name not in left_out
    }


def _of_profile(
    verb: str, options: Mapping[str, click.Option], context: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    path = config_file(environment)
    named = context or environment.get(CONTEXT, "")
    if not path.exists():
        if named:
            raise ConfigurationError(
                f"profile {named!r} is not known: there is no file {path}; docs/cli.md shows one",
                code="profile-unknown",
            )
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            f"the file of profiles {path} cannot be read: {error}", code="config-invalid"
        ) from None
    contexts = content.get("contexts")
    contexts = contexts if isinstance(contexts, dict) else {}
    chosen = named or content.get("context", "")
    if not chosen:
        return {}
    profile = contexts.get(chosen)
    if not isinstance(profile, dict):
        known = ", ".join(sorted(contexts)) or "none"
        raise ConfigurationError(f"profile {chosen!r} is not in {path}; it has {known}", code="profile-unknown")
    own = profile.get(verb, {})
    general = {_name(key): value for key, value in profile.items() if not isinstance(value, dict)}
    special = {_name(key): value for key, value in own.items()} if isinstance(own, dict) else {}
    unknown = sorted(special.keys() - options.keys())
    if unknown:
        raise ConfigurationError(
            f"{path}: contexts.{chosen}.{verb} has {unknown[0]!r}, which {verb} has no option for",
            code="option-unknown",
        )
    return {name: value for name, value in {**general, **special}.items() if name in options}


def _name(key: str) -> str:
    return key.replace("-", "_")


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
        """Find the verb; its options get their defaults from the environment and the profile."""
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
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        error = ConfigurationError(
            f"{error.filename or 'a file'} cannot be used: {error.strerror}; correct the permissions, make room, or "
            "work in another folder",
            code="file-unwritable",
        )
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
