"""The YAML file of receive: what it may hold, and what is said of what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark.cli.receive.config import ReceiveConfig, SinkConfig, load, parse
from wallaroo_spark.errors import ConfigurationError

CONF = Path(__file__).resolve().parents[2] / "conf"
LEAST: dict[str, Any] = {"receiver": "orders", "checkpoint": "ck", "sink": {"format": "parquet", "path": "rows"}}


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse({**LEAST, **changes}, "r.yaml")
    return caught.value.message


def written(path: Path, text: str) -> str:
    file = path / "r.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_the_sample_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALLAROO_COOKIE", "c")

    config = load(str(CONF / "receive.yaml"))

    assert isinstance(config, ReceiveConfig)
    assert config.receiver == "orders"
    assert config.sink == SinkConfig("parquet", "./receive/rows", "append", {"compression": "zstd"})
    assert config.trigger == {"processingTime": "10 seconds"}
    assert config.options.memory_budget == 256 << 20


def test_the_least_that_is_needed_takes_defaults_for_the_rest() -> None:
    config = parse(LEAST, "r.yaml")

    assert (config.trigger, config.spark, config.select, config.given) == ({}, {}, (), {})
    assert config.options.receiver == "orders"


def test_options_are_known_in_any_case_and_tls_may_be_nested() -> None:
    config = parse({**LEAST, "MEMORYBUDGET": "64m", "tls": {"certificate": "c.pem", "Key": "k.pem"}}, "r.yaml")

    assert config.options.memory_budget == 64 << 20
    assert (config.options.tls_certificate, config.options.tls_key) == ("c.pem", "k.pem")
    assert set(config.given) == {"memoryBudget", "tls.certificate", "tls.key"}


def test_values_reach_spark_as_it_writes_them() -> None:
    spark = {"spark.ui.enabled": False, "spark.cores.max": 4}
    config = parse({**LEAST, "spark": spark, "select": "CAST(value AS STRING) AS text"}, "r.yaml")

    assert config.spark == {"spark.ui.enabled": "false", "spark.cores.max": "4"}
    assert config.select == ("CAST(value AS STRING) AS text",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wokers": 2}, "r.yaml: wokers is not known; did you mean workers?"),
        ({"checkpont": "x"}, "r.yaml: checkpont is not known; did you mean checkpoint?"),
        ({"sink": {"format": "noop", "pth": "x"}}, "r.yaml: sink.pth is not known; did you mean sink.path?"),
        (
            {"trigger": {"processingtime": "1 second"}},
            "r.yaml: trigger.processingtime is not known; did you mean trigger.processingTime?",
        ),
        ({"zzz": 1, "sink": {"format": "noop"}}, "r.yaml: zzz is not known; there are receiver, registry, workers"),
        ({"Workers": 1, "workers": 2}, "r.yaml: workers is given twice; leave one"),
        ({"sink": "parquet"}, "r.yaml: sink is 'parquet', and must hold names and values of its own"),
        (
            {"sink": {"format": "noop", "mode": "apend"}},
            "r.yaml: sink.mode 'apend' is not one of append, update, complete",
        ),
        (
            {"trigger": {"processingTime": "1 second", "availableNow": True}},
            "r.yaml: trigger holds processingTime and availableNow, and a query has one; leave one",
        ),
        ({"trigger": {"availableNow": "maybe"}}, "r.yaml: trigger.availableNow is 'maybe'; it is true or false"),
        (
            {"spark": {"master": "local"}},
            "r.yaml: spark: master is no setting of Spark's; their names start with spark.",
        ),
        ({"select": [1]}, "r.yaml: select is a list of SQL expressions"),
        ({"memoryBudget": "much"}, "option memoryBudget: 'much' cannot be read; expected bytes"),
        ({"workers": 0}, "option workers: 0 is"),
        ({"cookie": "env:NOWHERE_TO_BE_FOUND"}, "secret env:NOWHERE_TO_BE_FOUND: no such environment variable"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(changes: dict[str, Any], message: str) -> None:
    assert refusal(changes).startswith(message)


def test_everything_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse({"sink": {}}, "r.yaml")

    assert caught.value.message == (
        "r.yaml lacks receiver (a name), checkpoint (a directory that belongs to this query alone), "
        "sink.format (such as parquet); conf/receive.yaml is a sample to copy"
    )


def test_a_file_format_needs_a_path() -> None:
    assert refusal({"sink": {"format": "parquet"}}).startswith("r.yaml lacks sink.path (where the parquet files go)")


def test_a_secret_is_not_repeated_in_an_error() -> None:
    assert "hunter2" not in refusal({"cookie": "hunter2", "workers": "many"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not YAML in line 1, column 6"),
        ("", "holds no names and values"),
        ("- a", "holds no names and values"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none.yaml cannot be read: No such file or directory; conf/"):
        load(str(tmp_path / "none.yaml"))


def test_overrides_reach_options_and_sections(tmp_path: Path) -> None:
    file = written(tmp_path, "{receiver: a, checkpoint: c, Workers: 2, sink: {format: parquet, path: p}}")

    config = load(
        file,
        [
            "workers=3",
            "sink.path=q",
            "sink.options.compression=gzip",
            "trigger.processingTime=1 second",
            "trigger.availableNow=true",
            "spark.sql.session.timeZone=UTC",
            "checkpoint=d",
        ],
    )

    assert (config.options.workers, config.sink.path, config.checkpoint) == (3, "q", "d")
    assert config.sink.options == {"compression": "gzip"}
    assert config.trigger == {"availableNow": True}
    assert config.spark == {"spark.sql.session.timeZone": "UTC"}


@pytest.mark.parametrize("override", ["workers", "=3"])
def test_an_override_without_name_or_value_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigurationError, match="is not of the form name=value"):
        load(written(tmp_path, "receiver: a"), [override])
