"""Producers of all Kafka clients as programs under one contract, which tests, chaos and benches run alike.

A program sends the records ``--first`` to ``--first + --count - 1``. The key of each is the client id, its value the
decimal number of the record, with zeros in front where ``--value-bytes`` is greater. Apart from what the arguments say,
the client has its own defaults. The program writes lines to its standard output, each flushed:

- ``acked N``: record N was answered with success;
- ``failed N REASON``: the client gave it up;
- ``end``: nothing is under way any more. The program then ends with 0.

Python's clients send nothing more after a SIGTERM, and end as after the last record. A program ends with another code,
and without ``end``, when its client cannot begin. Its standard error has the client's log.
The arguments come in any order, each with a value::

    --bootstrap HOST:PORT --topic T --client-id C --first N --count N
    [--rate RECORDS_PER_SECOND]            as fast as it goes without
    [--codec none|gzip|snappy|lz4|zstd]    the client's own default without
    [--password P]                         SASL/PLAIN, with the client id as user
    [--ca FILE]                            TLS
    [--value-bytes N]
    [--key TEXT]                           in place of the client id; empty: no key
    [--lines all|failed]                   failed: no line for an answered record
    [--settings JSON]                      Python's clients alone: settings under the client's own names
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from proving.servers.packages.maven import fetched, java

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "producers"
"""Where programs are built, once for each state of their sources."""
BUILD_SECONDS = 900
"""The longest build. A choice: Go compiles its clients and a Collector from source."""
KAFKA_CLIENTS = ("org.apache.kafka", "kafka-clients", "4.4.0", True)

CODECS: dict[str, tuple[str, ...]] = {
    "java": ("none", "gzip", "snappy", "lz4", "zstd"),
    "confluent-kafka": ("none", "gzip", "snappy", "lz4", "zstd"),
    "kafka-python": ("none", "gzip", "snappy", "lz4", "zstd"),
    "aiokafka": ("none", "gzip", "snappy", "lz4", "zstd"),
    "franz-go": ("none", "gzip", "snappy", "lz4", "zstd"),
    "sarama": ("none", "gzip", "snappy", "lz4", "zstd"),
    "kafkajs": ("none", "gzip", "snappy"),
}
"""The clients, each with its codecs. kafkajs has packages for the others, which are compiled at their installation."""
IDEMPOTENT = frozenset({"java", "kafka-python", "franz-go"})
"""The clients whose default is an idempotent producer."""
_PYTHON = frozenset({"confluent-kafka", "kafka-python", "aiokafka"})
_GO = {"franz-go": "franz", "sarama": "sarama"}


def command(name: str, folder: Path = FOLDER) -> list[str]:
    """The beginning of the command line of a client's program; the program is built into ``folder`` when it is not.

    Raises :class:`KeyError` for a name that :data:`CODECS` does not have, and :class:`RuntimeError` where it cannot be
    built.
    """
    if name in _PYTHON:
        return [sys.executable, "-m", "proving.producers.python_clients", name]
    if name == "java":
        jars = fetched("kafka-clients", KAFKA_CLIENTS)
        built = built_from(HERE / "java", folder, ["javac", "-cp", f"{jars}/*", "-d", ".", "JavaProducer.java"])
        # A small heap and a quick compiler are not for it: it is a client whose speed is measured.
        return [java(), "-cp", os.pathsep.join([str(built), f"{jars}/*"]), "JavaProducer"]
    if name in _GO:
        built = built_from(HERE / "go", folder, ["go", "mod", "tidy"], ["go", "build", "-o", "bin/", "./..."])
        return [str(built / "bin" / _GO[name])]
    if name == "kafkajs":
        built = built_from(HERE / "js", folder, ["npm", "install", "--omit=dev", "--no-audit", "--no-fund"])
        return ["node", str(built / "producer.js")]
    raise KeyError(name)


def built_from(sources: Path, folder: Path, *steps: list[str]) -> Path:
    """A copy of the sources in which these steps were run. One process builds, others wait for it."""
    files = sorted(path for path in sources.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:12]
    built = folder / f"{sources.name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{sources.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.is_dir():
            part = built.with_name(f"{built.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(sources, part)
            for step in steps:
                done = subprocess.run(
                    step, cwd=part, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
                )
                if done.returncode:
                    raise RuntimeError(f"{' '.join(step)} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
            part.rename(built)
    return built
