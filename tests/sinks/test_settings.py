"""The sinks' tables of settings: misspelled and impossible settings are refused, and secrets are not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark import sinks
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import rows
from wallaroo_spark.sinks.settings import (
    ConnectorSinkSettings,
    DeltaSettings,
    FilesSettings,
    IcebergSettings,
    KafkaSettings,
    PostgresWriterSettings,
    RedisSettings,
    SqlSettings,
    StreamSettings,
)

GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "connector": (ConnectorSinkSettings, {"address": "a:1"}),
    "delta": (DeltaSettings, {"path": "/data/table"}),
    "files": (FilesSettings, {"path": "/data/out"}),
    "iceberg": (IcebergSettings, {"table": "shop.orders"}),
    "kafka": (KafkaSettings, {"bootstrap": "a:1", "topic": "orders"}),
    "postgres": (PostgresWriterSettings, {"dsn": "postgresql://a", "table": "orders"}),
    "redis": (RedisSettings, {"url": "redis://a", "list": "orders"}),
    "sql": (SqlSettings, {"url": "sqlite://", "table": "orders"}),
    "stream": (StreamSettings, {"application": "/data/shop", "stream": "shop/orders"}),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_sink_takes_the_rows_of_its_table(kind: str, tmp_path: Path) -> None:
    table, given = GIVEN[kind]
    made = getattr(sinks, kind)(**given, checkpoint=str(tmp_path), name="orders")

    assert made.sink.name == "orders"
    assert all(f"- ``{one.name}``" in getattr(sinks, kind).__doc__ for one in rows(table))


@pytest.mark.parametrize("kind", GIVEN)
def test_a_misspelled_setting_is_named_with_the_one_that_is_meant(kind: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=rf"{kind}\(\) has no setting 'chekpoint'; did you mean checkpoint\?"):
        getattr(sinks, kind)(**GIVEN[kind][1], chekpoint=str(tmp_path), name="orders")


@pytest.mark.parametrize(
    ("kind", "setting", "value", "complaint"),
    [
        ("connector", "answer_timeout", -1, "answer_timeout: -1 is not 0 or more"),
        ("connector", "max_frame_bytes", 10, "max_frame_bytes: 10 is not 1024 or more"),
        ("files", "format", "orc", "format: 'orc' is not one of parquet, json, arrow"),
        ("kafka", "timeout", "60", "timeout: '60' is not a number"),
        ("postgres", "lock_timeout", -1.0, "lock_timeout: -1.0 is not 0 or more"),
        ("redis", "stream", "also", "give either stream= or list="),
        ("stream", "format", "json", "format: 'json' is not one of columns, cloudevents"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(
    kind: str, setting: str, value: Any, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"sink orders: {complaint}"):
        getattr(sinks, kind)(**GIVEN[kind][1], checkpoint=str(tmp_path), name="orders", **{setting: value})


@pytest.mark.parametrize(
    ("kind", "secret"),
    [
        ("connector", {"cookie": "hush"}),
        ("kafka", {"options": {"sasl.password": "hush"}}),
        ("postgres", {"dsn": "password=hush"}),
        ("redis", {"url": "redis://:hush@a"}),
        ("sql", {"url": "mysql+pymysql://u:hush@a"}),
    ],
)
def test_secrets_are_not_shown(kind: str, secret: dict[str, Any]) -> None:
    table, given = GIVEN[kind]

    assert "hush" not in repr(table(**{**given, **secret}, checkpoint="/c", name="orders"))
