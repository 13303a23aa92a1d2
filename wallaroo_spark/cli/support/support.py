"""``wallaroo-spark support``: one archive with what a person needs who looks for the cause of a failure."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Annotated

import click

from wallaroo_spark.cli.common import print_result
from wallaroo_spark.cli.main import config_file
from wallaroo_spark.cli.support import parts
from wallaroo_spark.cli.support.archive import Bundle, Cleaner, names_secret
from wallaroo_spark.cli.support.check import findings
from wallaroo_spark.cli.support.parts import Deployment
from wallaroo_spark.cli.verbs import Json, verb
from wallaroo_spark.texts import count, size

LOG_BYTES = 10 << 20
"""The most bytes of each log file, from its end. A choice: the end has the failure, and an archive has to be sent."""
_SHORTEST_VARIABLE = 8
"""Minimum length of a secret that is only guessed from the name of its variable. A choice: ``MY_KEY=true`` is none."""
_ENDS = (".tar.gz", ".tgz")


@verb()
def support(
    config: Annotated[str, click.Path(dir_okay=False)] = "",
    *,
    place: Deployment,
    logs: Annotated[tuple[str, ...], "--log"] = (),
    secrets: Annotated[tuple[str, ...], "--secret"] = (),
    output: str = "",
    as_json: Json = False,
) -> None:
    """Write one archive for the report of a defect, and list what it has and what could not be reached.

    It has the versions of this package, Python, PySpark, Java and the system, the packages of each extra, the variables
    of Spark and Java, the status of the receiver with the last events of each worker, the topics, the names of the
    registry's keys, the names, sizes and times of the checkpoint's files, and the log files that you name. With --app
    it has the status of an application of durable streams, and the names, sizes and times of its files. With CONFIG,
    the YAML file of receive, it also has its values and the findings of check. It has no message of a stream, unless a
    log file has one.

    Secrets are replaced by ***: those of CONFIG, of the profiles and of variables with such names, those given by
    --secret, users and passwords in URLs, and values behind names such as password or token. Look through the archive
    before you give it away. A part that cannot be reached is listed with its reason, and the exit status is 0.

    Options:
        --log FILE: A log file, of which the last 10 MiB are taken. Repeatable.
        --secret TEXT: Another text to remove, better as env:NAME or file:PATH. Repeatable.
        --output FILE: The archive (.tar.gz); by default a new file in this directory.
        --json: Print one line of JSON instead of the lists.

    Examples:
        wallaroo-spark support orders.yaml --log driver.log
        wallaroo-spark support --registry redis://127.0.0.1:6379 --receiver orders --checkpoint /data/orders
        wallaroo-spark --context test support --log stderr --secret env:DATABASE_PASSWORD
    """
    path = Path(output or time.strftime("wallaroo-spark-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if not path.name.endswith(_ENDS):
        raise click.UsageError(f"--output {output}: the archive is a .tar.gz, so let its name end with .tar.gz")
    cleaner = _knowing(place.registry, secrets)
    bundle = Bundle(cleaner)
    bundle.collect("versions.json", "versions of this package and of what it runs on", parts.versions)
    bundle.collect("variables.json", "environment variables of Spark, Java and Python", parts.variables)
    _of_deployment(bundle, _configured(bundle, config, place))
    for number, log in enumerate(logs, start=1):
        name = re.sub(r"[^\w.-]", "_", Path(log).name)
        bundle.collect(f"logs/{number}-{name}", f"the end of {log}", partial(parts.end_of_log, log, LOG_BYTES))
    contents = bundle.write(path)
    collected, missing = contents["collected"], contents["missing"]
    lines = [f"collected  {one['name']} ({size(one['bytes'])}): {one['about']}" for one in collected]
    lines += [f"missing    {one['name']}: {one['reason']}" for one in missing]
    written = f"Wrote {path.absolute()} ({size(path.stat().st_size)}, {count(len(collected), 'file')})"
    lines.append(f"{written}. Secrets are replaced by ***; look through it before you give it away.")
    print_result(as_json, {"archive": str(path.absolute()), **contents}, "\n".join(lines))


def _knowing(registry: str, secrets: tuple[str, ...]) -> Cleaner:
    """The cleaner with the secrets of the command line, of variables and of the profiles."""
    cleaner = Cleaner()
    cleaner.learn(registry, whole=False)
    for secret in secrets:
        cleaner.learn(secret)
    for name, value in os.environ.items():
        if names_secret(name) and len(value) >= _SHORTEST_VARIABLE:
            cleaner.learn(value)
        elif "://" in value:
            cleaner.learn(value, whole=False)
    # A broken file of profiles was refused before this verb began.
    with contextlib.suppress(OSError, ValueError):
        cleaner.learn_named(tomllib.loads(config_file().read_text(encoding="utf-8")))
    return cleaner


def _configured(bundle: Bundle, config: str, place: Deployment) -> Deployment:
    """Collect the configuration; the place with its values."""
    if not config:
        bundle.miss("options.json", "no CONFIG was named")
        return place
    try:
        values = parts.document(config, bundle.cleaner)
    except Exception as error:
        bundle.miss("options.json", str(error))
        return place
    bundle.collect("options.json", f"the values of {config}, and defaults", lambda: parts.options(values))
    checked = findings(config, (), with_spark=False)
    about = "the findings of check without Spark"
    bundle.collect("check.json", about, lambda: [dataclasses.asdict(finding) for finding in checked])
    return parts.completed(place, values)


def _of_deployment(bundle: Bundle, place: Deployment) -> None:
    """Collect the parts that the registry, the workers, the checkpoint and the folder of an application show."""
    if place.registry in ("", "embedded"):
        reason = "the receiver has a Redis of its own; give --registry the URL that receive --show-registry prints"
        bundle.miss("status", reason if place.registry else "no --registry was named, so nobody can be asked")
    else:
        about = "the status of receivers, with the last events of each worker"
        bundle.collect("receivers.json", about, lambda: parts.statuses(place, bundle.miss))
        bundle.collect("topics.json", "the status of topics", lambda: parts.topics(place.registry))
        about = "the leases, and the registry's keys without their values"
        bundle.collect("registry.json", about, lambda: parts.registry_keys(place, bundle.cleaner, bundle.miss))
    if place.checkpoint:
        about = "names, sizes and times of the checkpoint's files"
        bundle.collect("checkpoint.json", about, lambda: parts.files_of(place.checkpoint))
        about = "the transactional sinks of the query"
        bundle.collect("sinks.json", about, lambda: parts.sinks(place.checkpoint))
    else:
        bundle.miss("checkpoint.json", "no --checkpoint was named")
    # Most deployments have no application.
    if place.app:
        about = "the newest status of the application of durable streams"
        bundle.collect("application.json", about, lambda: parts.application(place.app))
        about = "names, sizes and times of the application's files"
        bundle.collect("application-files.json", about, lambda: parts.application_files(place.app))
