"""``wallaroo-spark status``: the state of a receiver from its registry, its workers and a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.cli.common import debug_option, debugging, set_up_logging
from wallaroo_spark.errors import TransportError

if TYPE_CHECKING:
    from rich.console import Console

    from wallaroo_spark.inner.client import Trust
    from wallaroo_spark.registry import Lease, Registry

ATTEMPTS = 2
"""Attempts to reach the registry: few, because a person waits for the answer."""
ANSWER_SECONDS = 5.0
WIDE = 200
WAITING = (
    "Workers accept no connector before the receiver has started a query: receiver.start_query(rows.writeStream…, "
    "checkpoint=…) starts one, and .start() of Spark alone does not."
)
SINKS = {
    "new": "nothing was decided yet",
    "finished": "batch {batch} is committed and finished",
    "committed": "batch {batch} is decided, to commit, and not finished; the query finishes it, now or when it starts",
    "aborted": "batch {batch} was aborted; the query runs it again",
}
"""The text for a sink in each state."""


@click.command(short_help="Show the workers of a running receiver, topics and sinks.")
@click.option(
    "--registry", default="", metavar="URL", help="The Redis of receivers and topics; also env:NAME or file:PATH."
)
@click.option("--receiver", default="", metavar="NAME", help="The receiver's name.")
@click.option("--checkpoint", default="", metavar="PATH", help="A query's checkpoint, to show its transactional sinks.")
@click.option(
    "--tls", is_flag=True, help="The workers use TLS; verify them with the authorities that this system trusts."
)
@click.option("--tls-ca", default="", metavar="FILE", help="PEM file of the authority of the workers' certificates.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
@debug_option
def status(registry: str, receiver: str, checkpoint: str, tls: bool, tls_ca: str, as_json: bool) -> None:
    """Show each slot of a receiver: who serves it, who is connected, and how full its buffer is.

    With --registry it also shows the topics, and without --receiver only the topics: the address of each partition,
    its newest epoch and the number of its subscribers. With --checkpoint it also shows the transactional sinks of a
    query: for each the newest batch that was decided, and whether it is finished. The exit status is 0 when
    every slot and every partition is served, and 1 when one is not, waits for its query, or the receiver does not run.
    """
    if (receiver and not registry) or not (registry or checkpoint):
        raise click.UsageError("give --registry URL, with --receiver NAME for its slots, or --checkpoint PATH, or all")
    set_up_logging()
    answer = _look(registry, receiver, tls, tls_ca) if receiver else {}
    topics = _topics(registry) if registry else []
    if topics or (registry and not receiver):
        answer["topics"] = topics
    if checkpoint:
        from wallaroo_spark.sinks.two_phase.decision_log import sinks_of

        answer["sinks"] = sinks_of(checkpoint)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(answer, checkpoint)
    places = [*answer.get("workers", ()), *(place for topic in topics for place in topic["partitions"])]
    if not answer.get("running", True) or any(place["state"] != "serving" for place in places):
        raise click.exceptions.Exit(1)


def _look(registry: str, receiver: str, tls: bool, tls_ca: str) -> dict[str, Any]:
    from wallaroo_spark.inner.client import Trust
    from wallaroo_spark.registry import Registry
    from wallaroo_spark.transport import read_authority

    trust = Trust(read_authority(tls_ca) if tls_ca else b"") if tls or tls_ca else None
    with Registry(registry, receiver, attempts=ATTEMPTS) as found:
        return look(found, receiver, trust)


def _topics(registry: str) -> list[dict[str, Any]]:
    from wallaroo_spark.cli.status.topics_view import look_at_topics
    from wallaroo_spark.pubsub.topic_catalog import TopicCatalog

    with TopicCatalog(registry, attempts=ATTEMPTS) as found:
        return look_at_topics(found)


def _print(answer: dict[str, Any], checkpoint: str) -> None:
    if answer.get("running"):
        _show(answer)
    elif "running" in answer:
        click.echo(nothing_runs(answer))
    if answer.get("topics"):
        from wallaroo_spark.cli.status.topics_view import topics_table

        _console().print(topics_table(answer["topics"]))
    elif "topics" in answer:
        click.echo("No topic runs in this registry.")
    for sink in answer.get("sinks", ()):
        click.echo(f"Sink {sink['sink']!r}: {SINKS[sink['state']].format(**sink)}")
    if checkpoint and not answer["sinks"]:
        click.echo(f"No transactional sink has a log in {checkpoint}.")


def look(registry: Registry, receiver: str, trust: Trust | None = None) -> dict[str, Any]:
    """The status, as JSON-ready values: ``receiver``, ``running``, ``driver`` and ``workers``, one a slot.

    ``trust`` is how the workers are verified, None when they speak plain text.
    When debugging, each worker that answers has its last events as ``story``.
    Raises :class:`RegistryError` when the registry does not answer; a worker that does not is listed as unreachable.
    """
    fleet, leases, driver = registry.fleet(), registry.leases(), registry.locked_by("receiver")
    if not leases and driver is None:
        return {"receiver": receiver, "running": False, "driver": None, "workers": []}
    slots = range(max([int(fleet.get("workers", 0)), *(slot + 1 for slot in leases)]))
    workers = [_slot(slot, leases.get(slot), fleet, trust) for slot in slots]
    # All workers give the same warnings about shared settings.
    warnings = sorted({said for slot in workers for said in slot.get("worker", {}).get("warnings", ())})
    return {"receiver": receiver, "running": True, "driver": driver, "warnings": warnings, "workers": workers}


def nothing_runs(answer: dict[str, Any]) -> str:
    """The sentence for a receiver that does not run."""
    return (
        f"Receiver {answer['receiver']!r} does not run: no driver and no worker holds a lease in this registry. "
        "Start it with wallaroo-spark receive, or check the name and the registry."
    )


def _slot(slot: int, lease: Lease | None, fleet: dict[str, str], trust: Trust | None) -> dict[str, Any]:
    from wallaroo_spark.registry import state_served

    if lease is None:
        return {"slot": slot, "state": "vacant"}
    known = {"slot": slot, "connect": lease.connect, "holder": lease.holder, "generation": lease.generation}
    if not lease.flight:
        return {**known, "state": "starting"}
    from wallaroo_spark.inner.client import WorkerClient

    client = WorkerClient(lease.flight, fleet.get("status_token", ""), ANSWER_SECONDS, trust)
    try:
        worker = client.status()
        known |= {"story": client.story()} if debugging() else {}
    except TransportError as error:
        return {**known, "state": "unreachable", "error": error.message}
    finally:
        client.close()
    state = "stopping" if worker.get("stopping") else state_served(worker["ready"], fleet.get("query", ""))
    return {**known, "state": state, "worker": worker}


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    # Output to a program or a file is not wrapped at the width of a terminal.
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def _show(answer: dict[str, Any]) -> None:
    from wallaroo_spark.cli.tables import slots_table

    console = _console()
    driver = (
        f"driver {answer['driver']}" if answer["driver"] else "no driver: it has ended, or does not reach the registry"
    )
    console.print(f"Receiver {answer['receiver']!r}, {driver}", markup=False, soft_wrap=True)
    console.print(slots_table(answer["workers"]))
    for warning in answer["warnings"]:
        console.print(f"Warning: {warning}", markup=False, soft_wrap=True)
    for slot in answer["workers"]:
        if slot["state"] == "unreachable":
            console.print(
                f"slot {slot['slot']}: {slot['error']}; its inner port must be reachable from here",
                markup=False,
                soft_wrap=True,
            )
    for slot in answer["workers"]:
        if slot.get("story"):
            console.print(f"slot {slot['slot']}, its last events:", markup=False)
            for line in slot["story"]:
                console.print(f"  {line}", markup=False, soft_wrap=True)
    if any(slot["state"] == "waiting" for slot in answer["workers"]):
        console.print(WAITING, markup=False, soft_wrap=True)
