"""The public names of the room of sinks, and when they are loaded."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark import sinks
from wallaroo_spark.errors import ConfigurationError


def test_every_name_is_there() -> None:
    for name in sinks.__all__:
        assert callable(getattr(sinks, name)), name


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("connector", {"address": "127.0.0.1:7200"}),
        ("delta", {"path": "out"}),
        ("files", {"path": "out", "format": "json"}),
        ("iceberg", {"table": "shop.orders"}),
        ("kafka", {"bootstrap": "127.0.0.1:9092", "topic": "t"}),
        ("postgres", {"dsn": "postgresql://h/d", "table": "t"}),
        ("redis", {"url": "redis://h", "stream": "s"}),
        ("sql", {"url": "postgresql+psycopg://h/d", "table": "t"}),
    ],
)
def test_each_kind_makes_a_writer_that_can_be_pickled_and_connects_to_nobody(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    writer = getattr(sinks, kind)(checkpoint=str(tmp_path), name="orders", **settings)

    again = pickle.loads(pickle.dumps(writer))

    assert isinstance(again, sinks.BatchWriter)
    assert (again.sink.name, again.checkpoint) == ("orders", str(tmp_path))
    assert type(again.sink) is type(writer.sink)
    # A path is pickled as the place that it is for Spark, where a test before this one has started one.
    assert kind in ("delta", "files") or repr(again) == repr(writer)


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("delta", "deltalake"), ("iceberg", "pyiceberg"), ("kafka", "confluent_kafka"), ("postgres", "psycopg")],
)
def test_a_missing_package_is_named_with_its_extra(kind: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == missing or name.startswith(f"wallaroo_spark.sinks.stores.{kind}"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(ConfigurationError, match=rf"sinks\.{kind} needs {missing}.*wallaroo-spark\[{kind}\]"):
        getattr(sinks, kind)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'oracle'"):
        sinks.oracle  # noqa: B018  # the look-up itself is tested
