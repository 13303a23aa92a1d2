"""``wallaroo-spark groups``: where the groups of streams stand, and what an operator does to them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import click

from wallaroo_spark.cli.durable.connecting import client_settings, gateway_options, start_of_text
from wallaroo_spark.cli.schema import app_option, json_option
from wallaroo_spark.texts import count


class GroupChange(NamedTuple):
    """A verb that changes a group."""

    help: str
    done: str
    """What is said of the group afterwards."""
    example: str
    """Example of its arguments behind the stream and the group."""
    options: tuple[click.Option, ...] = ()


CHANGES = {
    "move": GroupChange(
        "Move a group of STREAM: it goes on at --to, backwards too. Open deliveries are withdrawn.\n\n"
        "Offsets are those of one partition, so name it with --partition.",
        "is moved",
        "--to 1200 --partition 0",
        (
            click.Option(
                ["--to"], required=True, metavar="PLACE", help="Where it goes on: beginning, latest, or an offset."
            ),
        ),
    ),
    "pause": GroupChange(
        "Pause a group of STREAM: nothing is delivered until resume. What its members have, they may settle.",
        "is paused",
        "",
    ),
    "resume": GroupChange("Resume a group of STREAM that is paused.", "goes on", ""),
    "take-away": GroupChange(
        "Take the open deliveries of a group of STREAM away from the members that have them; others are given them.",
        "had deliveries taken away",
        "",
    ),
    "delete": GroupChange(
        "Delete a group of STREAM with its position. Its members' subscriptions end; one that joins again begins a new "
        "group.",
        "is deleted",
        "--yes",
        (click.Option(["--yes"], is_flag=True, help="Do not ask."),),
    ),
}
"""Verb → what it does; its action in :meth:`Client.change_group` has its name."""


@click.group()
def groups() -> None:
    """List the groups of streams, and move, pause, resume or delete one, or take its deliveries away."""


@groups.command(
    name="list",
    epilog="Examples: wallaroo-spark groups list --app ./shop · wallaroo-spark groups list shop/orders "
    "--registry redis://127.0.0.1:6379 --application shop --json",
)
@click.argument("stream", default="")
@app_option
@click.option("--registry", default="", metavar="URL", help="The application's Redis, in place of its folder.")
@click.option("--application", default="", metavar="NAME", help="Name of the application, with --registry.")
@json_option
def list_groups(stream: str, app: str, registry: str, application: str, as_json: bool) -> None:
    """List the groups of all streams, or of STREAM: for each partition the position (the last offset that is done), the
    lag, the members, and how long the open delivery waits and how often it was delivered. The note tells whether the
    group is paused, since when it has no member, and why its last delivery failed.

    The figures are those of status, so they are some seconds old. The exit status is 1 when the application does not
    run.
    """
    from wallaroo_spark.cli.status import sources
    from wallaroo_spark.cli.status.command import application_status
    from wallaroo_spark.observe.faces.as_json import record_to_json

    if application and not registry:
        raise click.UsageError("give --registry URL with --application NAME, or --app FOLDER")
    if not (application or app):
        raise click.UsageError(
            "give --app FOLDER, or --registry URL and --application NAME, or set WALLAROO_APP, or use --context"
        )
    status = application_status(app, registry, application)
    found = [(one, group) for one in status.partitions if stream in ("", one.stream) for group in one.groups]
    if as_json:
        rows = [{"stream": one.stream, "partition": one.partition, **record_to_json(group)} for one, group in found]
        click.echo(json.dumps({"groups": rows}))
    elif found:
        from wallaroo_spark.observe.faces.terminal import groups_table

        sources.console().print(groups_table(status, stream))
    else:
        click.echo("There are no groups.")
    if not status.running:
        click.echo(status.cause.sentence, err=True)
        raise click.exceptions.Exit(1)


def _changing(verb: str, change: GroupChange) -> click.Command:
    """The command of a verb of :data:`CHANGES`."""
    example = f"Example: wallaroo-spark groups {verb} shop/orders billing {change.example}".rstrip()

    @click.command(name=verb, help=change.help, epilog=example)
    @click.argument("stream")
    @click.argument("group")
    @click.option("--partition", "partitions", multiple=True, type=click.IntRange(0), metavar="N", help="Only these.")
    @gateway_options
    @json_option
    def run(
        stream: str,
        group: str,
        as_json: bool,
        partitions: tuple[int, ...],
        to: str = "beginning",
        yes: bool = True,
        **given: Any,
    ) -> None:
        from wallaroo_spark.client import Client

        settings = client_settings(given)
        if not yes:
            click.confirm(f"Delete group {group} of {stream} and its position?", abort=True, err=True)
        start = start_of_text(to)
        with Client(**settings) as client:
            changed = client.change_group(stream, group, verb.replace("-", "_"), start, partitions=partitions)
        if as_json:
            click.echo(json.dumps({"stream": stream, "group": group, "action": verb, "partitions": changed}))
        else:
            click.echo(f"Group {group} of {stream} {change.done}, on {count(changed, 'partition')}.")

    run.params[2:2] = change.options
    return run


for _verb, _change in CHANGES.items():
    groups.add_command(_changing(_verb, _change))
