"""The room: its names, and the parts that run with few packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wallaroo_spark import sinks

LIGHT = ["wallaroo_spark.sinks", "wallaroo_spark.sinks.server.sink_server", "wallaroo_spark.sinks.sink_client"]
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.split(".")[0] for name in sys.modules} & {"pyspark", "pyarrow", "pandas", "numpy", "redis"}))
"""


def test_a_sink_server_needs_neither_spark_nor_arrow() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *LIGHT], capture_output=True, text=True, check=True, timeout=60
    )

    assert ran.stdout.split() == []


def test_every_public_name_is_there_and_another_is_refused() -> None:
    assert all(getattr(sinks, name) for name in sinks.__all__)
    assert set(sinks.__all__) <= set(dir(sinks))
    with pytest.raises(AttributeError, match="no attribute 'conector'"):
        _ = sinks.conector
