"""``wallaroo-spark check``: checks everything that a receiver needs, before it is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated

import click

from wallaroo_spark.cli.common import exit_unless, print_result
from wallaroo_spark.cli.receive.command import Overrides
from wallaroo_spark.cli.receive.config import ReceiveConfig, problems
from wallaroo_spark.cli.sessions import ended_with
from wallaroo_spark.cli.support.findings import Finding, explained, note, of_error, ok, problem
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.texts import count

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "red")}
"""The mark of each state, and its colour on a terminal."""
WIDTH = max(len(mark) for mark, _ in MARKS.values())


@verb()
def check(
    config: Annotated[str, click.Path(dir_okay=False)],
    *,
    overrides: Overrides = (),
    without_spark: bool = False,
    as_json: Json = False,
) -> None:
    """Check whether the receiver of the YAML file CONFIG can run here; nothing of it is started.

    It checks the file, the packages, Redis and the rights of its user, the ports, what QUIC and doors need, and TLS; of
    a receiver that runs, also whether its doors are reached from here at the host and ports that clients are told, and
    its workers over QUIC, which networks may not let through. With
    Spark it also checks Java, the versions, the task slots, the packages and clocks of the executors, whether they
    reach Redis, and the checkpoint: whether driver and tasks can use it, which query it belongs to, and whether Spark
    writes it where this program reads it. For the last check a query without rows writes to a folder beside the
    checkpoint, which is deleted afterwards. Run it where the receiver will run, on a cluster with spark-submit and
    jobs/check.py. The exit status is 0 without a problem, and 1 otherwise.

    Options:
        --set NAME=VALUE: Override a value of the file, as receive does. Repeatable.
        --without-spark: Check the file, Redis, ports and TLS only, without a Spark session.
        --json: Print one line of JSON for each finding, and the verdict last.

    Examples:
        wallaroo-spark check orders.yaml
        wallaroo-spark check orders.yaml --without-spark --json
        spark-submit --master spark://host:7077 --properties-file conf/standalone.conf jobs/check.py orders.yaml
    """
    found = dict.fromkeys(MARKS, 0)
    for finding in findings(config, overrides, with_spark=not without_spark):
        found[finding.state] += 1
        mark, colour = MARKS[finding.state]
        line = f"{click.style(mark.ljust(WIDTH), fg=colour)}  {finding.subject}: {finding.text}"
        print_result(as_json, dataclasses.asdict(finding), line)
    sound = not found["problem"]
    if as_json or sound:
        print_result(as_json, {"sound": sound, **found}, "The receiver can be started.")
    verdict = f"{count(found['problem'], 'problem')}: the receiver would not start or would not work."
    exit_unless(sound, "" if as_json else verdict)


def findings(path: str, overrides: tuple[str, ...], *, with_spark: bool) -> Iterator[Finding]:
    """Iterate over all findings for a file, each as soon as it is known."""
    from wallaroo_spark.cli.support import check_steps as steps

    yield from explained("packages", steps.installed())
    config, errors = problems(path, overrides)
    yield from (problem("file", error.message) for error in errors)
    if config is None:
        return
    yield ok("file", f"{path} is valid, for receiver {config.receiver!r}")
    options, running = config.options, False
    url = steps.resolved_registry(options)
    for finding in explained("Redis", steps.registry(options, url) if url else steps.own_redis()):
        running = running or finding.subject == "receiver"
        yield finding
    yield from explained("ports", steps.ports(options, running=running))
    yield from explained("QUIC", steps.quic(options, url if running else ""))
    yield from explained("doors", steps.doors(options))
    if running:
        yield from explained("doors", steps.reach(options, url))
    yield from explained("TLS", steps.certificates(options))
    if with_spark:
        yield from _with_spark(config, url)


def _with_spark(config: ReceiveConfig, url: str) -> Iterator[Finding]:
    from wallaroo_spark.cli.receive.running import open_session
    from wallaroo_spark.cli.support import check_steps as steps

    try:
        session, ours = open_session(config)
    except Exception as error:
        yield of_error("Spark", error)
        return
    with ended_with(session, ours):
        yield from explained("Spark", steps.session(session, config.options))
        sound = True
        for finding in explained("executors", steps.tasks(session, config.options, url)):
            sound = sound and finding.state != "problem"
            yield finding
        if sound:
            yield from explained("checkpoint", steps.checkpoint(session, config, url))
        else:
            yield note("checkpoint", "not checked, because tasks cannot run correctly")
