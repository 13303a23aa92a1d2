"""The short text of a Spark error: the error itself, and not Spark's words around it."""

from __future__ import annotations

import pytest

from wallaroo_spark.runtime.job_errors import in_short

LOST = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed {} times, "
CRASHED = (
    "most recent failure: Lost task 0.0 in stage 1.0 (TID 17) (node-7 executor 3): org.apache.spark.SparkException: "
    "Python worker exited unexpectedly (crashed). Consider setting "
    "'spark.sql.execution.pyspark.udf.faulthandler.enabled' "
    "or'spark.python.worker.faulthandler.enabled' configuration to 'true' for the better Python traceback."
)
NOT_STARTED = (
    "most recent failure: Lost task 0.3 in stage 27.0 (TID 111) (node-7 executor 3): org.apache.spark.SparkException: "
)
REMOVED = (
    "most recent failure: Lost task 0.3 in stage 12.0 (TID 4) (10.0.0.7 executor 12): ExecutorLostFailure (executor 12 "
    "exited caused by one of the running tasks) Reason: Command exited with code 137"
)


@pytest.mark.parametrize(
    ("lines", "short"),
    [
        (
            (LOST.format(1) + CRASHED,),
            "node-7 executor 3: the Python process was killed or has crashed (out of memory?)",
        ),
        (
            (LOST.format(4) + REMOVED, "Driver stacktrace:", "\tat org.apache.spark.scheduler.DAGScheduler"),
            "10.0.0.7 executor 12: its process was killed by signal 9 (out of memory?)",
        ),
        (
            ("An error occurred while calling o1.start.", ": java.io.IOException: no space left on device", "\tat x"),
            "IOException: no space left on device",
        ),
        (
            (
                "org.apache.spark.api.python.PythonException: Traceback (most recent call last):",
                '  File "serializers.py", line 604, in read_int',
                "    raise EOFError",
                "EOFError",
                "",
                "\tat org.apache.spark.api.python.BasePythonRunner",
            ),
            "EOFError: the process of Spark at the other end has closed the connection; its error is in the executor's "
            "log",
        ),
        (
            (
                "py4j.protocol.Py4JJavaError: An error occurred while calling o12.collectToPython.",
                ": org.apache.spark.SparkException: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state store "
                "files. SQLSTATE: 58030",
                "\tat org.apache.spark.sql.errors",
                "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
                "\tat org.apache.hadoop.fs",
                "Caused by: java.io.IOException: No space left on device",
                "\t... 76 more",
            ),
            "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state store files. SQLSTATE: 58030; its first "
            "cause: IOException: No space left on device",
        ),
        (
            (
                "pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:",
                "Traceback (most recent call last):",
                '  File "plan.py", line 15, in <module>',
                "ValueError: 7 is no plan",
            ),
            "ValueError: 7 is no plan",
        ),
        (("org.apache.spark.SparkException: Job 4 cancelled",), "Job 4 cancelled"),
        (
            (LOST.format(1) + "failure: something new",),
            "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, failure: something new",
        ),
        (
            (
                LOST.format(4) + NOT_STARTED,
                "Error from python worker:",
                "  /usr/bin/python3: No module named pyspark.daemon",
                "PYTHONPATH was:",
                "  /opt/spark/python/lib/pyspark.zip",
                "org.apache.spark.SparkException: EOFException occurred while reading the port number from "
                "pyspark.daemon's stdout.",
                "\tat org.apache.spark.api.python.PythonWorkerFactory",
            ),
            "node-7 executor 3: Spark's Python did not start: /usr/bin/python3: No module named pyspark.daemon",
        ),
        ((LOST.format(4) + REMOVED.replace("137", "3"),), "10.0.0.7 executor 12: its process ended with exit status 3"),
    ],
)
def test_an_error_is_named_with_its_executor_and_without_sparks_words_around_it(
    lines: tuple[str, ...], short: str
) -> None:
    assert in_short(Exception("\n".join(lines))) == short


def test_a_long_error_ends_with_a_whole_word_and_a_sign_that_more_follows() -> None:
    short = in_short(Exception("java.io.IOException: " + "disk " * 200))

    assert len(short) <= 500
    assert short.endswith(" disk …")
    assert len(in_short(Exception("x" * 2_000))) == 500


def test_an_error_of_this_package_keeps_its_code_however_long_it_is() -> None:
    short = in_short(Exception(f"wallaroo_spark.errors.CheckpointError: {'path/' * 900} is gone [inbox-lost]"))

    assert short.endswith(" … [inbox-lost]")
    assert len(short) <= 1500
