"""``wallaroo-spark validate``: all problems of a YAML file, each with its line, before anything starts."""

from __future__ import annotations

import json
from typing import Annotated

import click

from wallaroo_spark.cli.receive.command import Overrides
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.texts import count


@verb()
def validate(
    config: Annotated[str, click.Path(dir_okay=False)], *, overrides: Overrides = (), as_json: Json = False
) -> None:
    """Check the YAML file CONFIG as receive would read it, without Spark and without a registry.

    Every problem is printed with its line, also secrets whose variable or file is missing. The exit status is 0 when
    there is none, and 1 otherwise. wallaroo-spark receive --sample prints a file to begin with.

    Options:
        --set NAME=VALUE: Override a value of the file, as receive does. Repeatable.
        --json: Print one line of JSON: file, valid and problems.

    Examples:
        wallaroo-spark validate orders.yaml
        wallaroo-spark validate orders.yaml --set workers=4 --json
    """
    from wallaroo_spark.cli.receive.config import problems

    found, errors = problems(config, overrides)
    if as_json:
        shown = [
            {
                "line": error.fields.get("line"),
                "name": error.fields.get("option"),
                "problem": error.message,
                "code": error.code,
            }
            for error in errors
        ]
        click.echo(json.dumps({"file": config, "valid": found is not None, "problems": shown}))
    elif found is not None:
        workers = count(found.options.workers, "worker")
        sink = f"{found.sink.format} into {found.sink.path}" if found.sink.path else found.sink.format
        click.echo(f"{config} is valid: receiver {found.receiver!r}, {workers}, {sink}.")
    else:
        for error in errors:
            click.echo(error.message)
        click.echo(f"{config}: {count(len(errors), 'problem')}.", err=True)
    if found is None:
        raise click.exceptions.Exit(1)
