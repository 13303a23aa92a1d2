"""A source of the user's own: how it is found, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from wallaroo_spark.bridges import BridgedStream
from wallaroo_spark.bridges.sources.python import PythonBridge
from wallaroo_spark.errors import ConfigurationError


async def first(bridge: PythonBridge) -> list[BridgedStream]:
    return [*await anext(bridge.streams())]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("missing.py:Source", "FileNotFoundError"),
        ("no_such_package_anywhere:Source", "ModuleNotFoundError"),
        ("json:Source", "KeyError"),
        ("json", "write FILE.py:NAME or MODULE:NAME"),
    ],
)
async def test_a_source_that_is_not_there_is_refused_with_the_form(source: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        await first(PythonBridge(source))


async def test_something_else_than_a_stream_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="returns int, which is no BridgedStream"):
        await first(PythonBridge("json:loads", ("[1]",)))


def test_a_long_place_has_a_name_that_fits(tmp_path: Path) -> None:
    short, long = PythonBridge("a.py:A", ("b",)), PythonBridge("a.py:A", ("b" * 300,))

    assert short.instance("python") == "bridge/python/a.py:A b"
    assert len(long.instance("python")) < 60


def test_the_receiver_is_asked_for(run: Run) -> None:
    done = run("bridge", "python", "a.py:A")

    assert (done.returncode, "give either --workers host:port, or --registry" in done.stderr) == (2, True)
