"""The classes and modules that a test's Spark loads, in a form that loads faster: most of the seconds of its life are
spent on loading.

``python -m tests.class_archive`` makes both. Java maps Spark's classes in, where it would read and verify thousands of
files of a jar: the archive is made out of what a receiver, a query and a connector on one machine have Java load, and
:func:`java_options` has Java use it. Java itself judges whether an archive is of its own version and of these jars, and
goes without it where it is not. And each Python process of Spark's imports pyspark from a zip of sources, which it
would compile anew every time; bytecode lies beside them then, which Python takes where it is of its own version.
Source: ``docs/decisions/class-archive.md``.
"""

from __future__ import annotations

import compileall
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARCHIVE = Path(sys.prefix) / "spark.jsa"
DUMP_SECONDS = 180.0

# A program that lives for seconds never profits from code that takes long to compile.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
READY_WORKERS = "-Dspark.python.daemon.module=tests.preloaded"
"""Spark's Python workers are forked with all that they need; see there."""


def java_options() -> str:
    """The arguments with which a test's Spark is started."""
    if not ARCHIVE.exists():
        return f"{SHORT_LIVED} {READY_WORKERS}"
    # It complains on stdout about an archive that does not fit, which nobody could do anything about.
    return f"{SHORT_LIVED} {READY_WORKERS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"


def add_bytecode(file: Path) -> None:
    """Put bytecode beside the sources in a zip; nothing is done where it is there."""
    with zipfile.ZipFile(file) as sources, tempfile.TemporaryDirectory() as folder:
        if any(name.endswith(".pyc") for name in sources.namelist()):
            return
        sources.extractall(folder)
        compileall.compile_dir(
            folder,
            quiet=2,
            legacy=True,
            stripdir=folder,
            prependdir=str(file),
            rx=re.compile("/tests/"),
            # A zip does not tell whether a source has changed since, and nobody changes these.
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        made = file.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as both:
            for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                both.write(path, path.relative_to(folder))
        made.replace(file)


def main() -> None:
    """Make the archive, and the bytecode."""
    import pyspark

    for file in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"):
        add_bytecode(file)
    made = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        java = _run()
        # Java writes the archive as it ends, and it ends once its standard input does.
        java.stdin.close()
        java.wait(timeout=DUMP_SECONDS)
        made.replace(ARCHIVE)
    finally:
        made.unlink(missing_ok=True)


def _run() -> Any:
    """Receive some messages and write them down; Spark's own process, which has stopped all that it ran."""
    from pyspark.sql import SparkSession

    from wallaroo_spark import BlockingConnector, Receiver

    builder = SparkSession.builder.master("local[4]").appName("class archive")
    for name, value in {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder, Receiver(spark, "archive", workers=1) as receiver:

        def write(batch: DataFrame, _: int) -> None:
            batch.groupBy("stream").count().collect()
            batch.write.mode("append").parquet(f"{folder}/rows")

        receiver.start(receiver.stream().writeStream.foreachBatch(write), checkpoint=f"{folder}/checkpoint")
        with BlockingConnector("archive", instance="archive", workers=receiver.addresses) as connector:
            connector.open("archive").send_many(b"%d" % number for number in range(1000))
            connector.drain(60.0)
        assert spark.read.parquet(f"{folder}/rows").count() == 1000
    java = getattr(spark.sparkContext._gateway, "proc")  # noqa: B009  # the gateway's type lacks it
    spark.stop()
    return java


if __name__ == "__main__":
    main()
