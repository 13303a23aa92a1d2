"""The names that users import: exactly these, loaded only when asked for, each from the room it lives in."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import wallaroo_spark
from tests.waiting import SECONDS

SOURCE = Path(wallaroo_spark.__file__).parent

HOMES = {
    "Application": "wallaroo_spark.engine",
    "BlockingConnector": "wallaroo_spark.connector",
    "Connector": "wallaroo_spark.connector",
    "Receiver": "wallaroo_spark.receiver",
    "read_history": "wallaroo_spark.streams",
    "follow_stream": "wallaroo_spark.streams",
    "read_instances": "wallaroo_spark.streams",
    "read_stream": "wallaroo_spark.streams",
}


def declares_names() -> list[str]:
    """The package and those of its rooms that say which of their names are public."""
    rooms = [path.parent.name for path in SOURCE.glob("*/__init__.py") if "__all__" in path.read_text(encoding="utf-8")]
    return ["wallaroo_spark", *sorted(f"wallaroo_spark.{room}" for room in rooms)]


def test_the_public_names_are_these() -> None:
    assert sorted(HOMES) == wallaroo_spark.__all__
    assert {name: home for home, names in wallaroo_spark._HOMES.items() for name in names} == HOMES
    assert set(HOMES) <= set(dir(wallaroo_spark))


def test_a_public_name_comes_from_its_home() -> None:
    for name, home in HOMES.items():
        assert getattr(wallaroo_spark, name) is getattr(importlib.import_module(home), name), name


def test_a_room_has_every_name_it_declares() -> None:
    rooms = [importlib.import_module(module) for module in declares_names()]

    assert [f"{room.__name__}.{name}" for room in rooms for name in room.__all__ if not hasattr(room, name)] == []


def test_a_name_that_is_not_public_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Reciever'"):
        _ = wallaroo_spark.Reciever


def test_importing_the_package_loads_none_of_its_rooms() -> None:
    program = "import sys, wallaroo_spark; print(*(name for name in sys.modules if name.startswith('wallaroo_spark')))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=SECONDS
    )

    assert set(loaded.stdout.split()) == {"wallaroo_spark", "wallaroo_spark.lazy_names"}
