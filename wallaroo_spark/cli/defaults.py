"""Defaults of the verbs' options from the environment and from profiles, for all verbs in one place.

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

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from wallaroo_spark.errors import ConfigurationError

CONTEXT = "WALLAROO_CONTEXT"
"""The environment variable with the name of the profile."""
CONFIG = "WALLAROO_CONFIG"
"""The environment variable with the path of the profiles' file."""
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
