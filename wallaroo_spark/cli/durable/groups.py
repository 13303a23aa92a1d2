"""``wallaroo-spark groups``: where the groups of streams stand, and what an operator does to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import click

from wallaroo_spark.cli.common import exit_unless, print_result
from wallaroo_spark.cli.durable.events import GatewayOptions, start_of_text
from wallaroo_spark.cli.durable.schema import AppOptions
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.texts import count


@click.group()
def groups() -> None:
    """List the groups of streams, and move, pause, resume or delete one, or take its deliveries away."""


@verb(groups, "list")
def list_groups(
    stream: str = "", *, app: AppOptions, registry: str = "", application: str = "", as_json: Json = False
) -> None:
    """List the groups of all streams, or of STREAM: for each partition the position (the last offset that is done), the
    lag, the members, and how long the open delivery waits and how often it was delivered. The note tells whether the
    group is paused, since when it has no member, and why its last delivery failed.

    The figures are those of status, so they are some seconds old. The exit status is 1 when the application does not
    run.

    Options:
        --registry URL: The application's Redis, in place of its folder.
        --application NAME: Name of the application, with --registry.
        --json: Print one line of JSON.

    Examples:
        wallaroo-spark groups list --app ./shop
        wallaroo-spark groups list shop/orders --registry redis://127.0.0.1:6379 --application shop --json
    """
    from wallaroo_spark.cli.status_views import application_status
    from wallaroo_spark.observe.faces.records import record_to_json
    from wallaroo_spark.observe.faces.terminal import groups_table

    if application and not registry:
        raise click.UsageError("give --registry URL with --application NAME, or --app FOLDER")
    if not (application or app.app):
        raise click.UsageError(
            "give --app FOLDER, or --registry URL and --application NAME, or set WALLAROO_APP, or use --context"
        )
    status = application_status(app, registry, application)
    found = [(one, group) for one in status.partitions if stream in ("", one.stream) for group in one.groups]
    rows = [{"stream": one.stream, "partition": one.partition, **record_to_json(group)} for one, group in found]
    print_result(as_json, {"groups": rows}, groups_table(status, stream) if found else "There are no groups.")
    exit_unless(status.running, status.cause.sentence)


@dataclass(frozen=True)
class ChangeOptions(GatewayOptions):
    """The partitions of a group that are changed.

    Options:
        --partition N: Only these.
        --json: Print one line of JSON.
    """

    partitions: Annotated[tuple[int, ...], "--partition", click.IntRange(0)] = ()
    as_json: Json = False

    def change(self, stream: str, group: str, action: str, done: str, start: str = "beginning") -> None:
        """Change a group, and print it; ``done`` is said of the group."""
        with self.client() as client:
            changed = client.change_group(
                stream, group, action.replace("-", "_"), start_of_text(start), partitions=self.partitions
            )
        values = {"stream": stream, "group": group, "action": action, "partitions": changed}
        print_result(self.as_json, values, f"Group {group} of {stream} {done}, on {count(changed, 'partition')}.")


@verb(groups)
def move(stream: str, group: str, *, to: str, given: ChangeOptions) -> None:
    """Move a group of STREAM: it goes on at --to, backwards too. Open deliveries are withdrawn.

    Offsets are those of one partition, so name it with --partition.

    Options:
        --to PLACE: Where it goes on: beginning, latest, or an offset.

    Examples:
        wallaroo-spark groups move shop/orders billing --to 1200 --partition 0
    """
    given.change(stream, group, "move", "is moved", to)


@verb(groups)
def pause(stream: str, group: str, *, given: ChangeOptions) -> None:
    """Pause a group of STREAM: nothing is delivered until resume. What its members have, they may settle.

    Examples:
        wallaroo-spark groups pause shop/orders billing
    """
    given.change(stream, group, "pause", "is paused")


@verb(groups)
def resume(stream: str, group: str, *, given: ChangeOptions) -> None:
    """Resume a group of STREAM that is paused.

    Examples:
        wallaroo-spark groups resume shop/orders billing
    """
    given.change(stream, group, "resume", "goes on")


@verb(groups)
def take_away(stream: str, group: str, *, given: ChangeOptions) -> None:
    """Take the open deliveries of a group of STREAM away from the members that have them; others are given them.

    Examples:
        wallaroo-spark groups take-away shop/orders billing
    """
    given.change(stream, group, "take-away", "had deliveries taken away")


@verb(groups)
def delete(stream: str, group: str, *, yes: bool = False, given: ChangeOptions) -> None:
    """Delete a group of STREAM with its position. Its members' subscriptions end; one that joins again begins a new
    group.

    Options:
        --yes: Do not ask.

    Examples:
        wallaroo-spark groups delete shop/orders billing --yes
    """
    given.settings()
    if not yes:
        click.confirm(f"Delete group {group} of {stream} and its position?", abort=True, err=True)
    given.change(stream, group, "delete", "is deleted")
