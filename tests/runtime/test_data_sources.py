"""The process in which Spark plans batches ends with Spark's connection, and says nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import SECONDS

PROGRAM = """
import sys
from wallaroo_spark.runtime.data_sources import end_with_spark

try:
    try:
        raise {error}
    finally:
        end_with_spark()
except BaseException as error:
    print(repr(error), file=sys.stderr)
"""


@pytest.mark.parametrize(("error", "said"), [("EOFError", ""), ("ValueError('a defect')", "ValueError('a defect')\n")])
def test_only_the_end_of_the_connection_ends_the_process_in_silence(error: str, said: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(error=error)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stderr == said
