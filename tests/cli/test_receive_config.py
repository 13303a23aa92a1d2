"""The YAML file of receive: its valid content, and the errors for invalid content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wallaroo_spark.cli.main import cli
from wallaroo_spark.cli.receive.config import ReceiveConfig, SinkConfig, load, parse, problems
from wallaroo_spark.cli.receive.running import batch_writer
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.sinks.stores.delta import DeltaSink
from wallaroo_spark.sinks.stores.stream import StreamSink

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
        ({"Workers": 1, "workers": 2}, "r.yaml: workers is given twice; remove one of them"),
        ({"sink": "parquet"}, "r.yaml: sink is 'parquet', and must contain names and values"),
        (
            {"sink": {"format": "noop", "mode": "apend"}},
            "r.yaml: option sink.mode: 'apend' is not one of append, update, complete",
        ),
        (
            {"trigger": {"processingTime": "1 second", "availableNow": True}},
            "r.yaml: trigger has processingTime and availableNow, and a query has one trigger; remove one of them",
        ),
        (
            {"trigger": {"availableNow": "maybe"}},
            "r.yaml: option trigger.availableNow: 'maybe' cannot be read; expected true or false",
        ),
        (
            {"spark": {"master": "local"}},
            "r.yaml: spark: master is no setting of Spark's; their names start with spark.",
        ),
        ({"select": [1]}, "r.yaml: select is a list of SQL expressions"),
        ({"memoryBudget": "much"}, "r.yaml: option memoryBudget: 'much' cannot be read; expected bytes"),
        ({"workers": 0}, "r.yaml: option workers: 0 is"),
        ({"cookie": "env:NOWHERE_TO_BE_FOUND"}, "r.yaml: secret env:NOWHERE_TO_BE_FOUND: no such environment variable"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(changes: dict[str, Any], message: str) -> None:
    assert refusal(changes).startswith(message)


def test_everything_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse({"sink": {}}, "r.yaml")

    assert caught.value.message == (
        "r.yaml lacks receiver (a name), checkpoint (a directory that belongs to this query alone), "
        "sink.format (such as parquet); wallaroo-spark receive --sample prints a sample"
    )


def test_a_file_format_needs_a_path() -> None:
    assert refusal({"sink": {"format": "parquet"}}).startswith("r.yaml lacks sink.path (where the parquet files go)")


def test_a_durable_stream_needs_its_application_and_its_name() -> None:
    assert refusal({"sink": {"format": "stream"}}).startswith(
        "r.yaml lacks sink.path (the folder of the application), sink.options.stream (the stream that takes the rows"
    )
    sink = {"format": "stream", "path": "shop", "options": {"stream": "shop/orders", "formt": "cloudevents"}}
    assert refusal({"sink": sink}).startswith(
        "r.yaml: sink.options.formt is not known; did you mean sink.options.format?"
    )


def test_the_options_of_a_durable_stream_are_settings_of_its_sink(tmp_path: Path) -> None:
    options = {"stream": "shop/orders", "format": "cloudevents", "timeout": "90s", "max_unread": "1m"}
    sink = {"format": "stream", "path": str(tmp_path / "shop"), "options": options}
    writer = batch_writer(parse({**LEAST, "checkpoint": str(tmp_path), "sink": sink}, "r.yaml"))

    assert isinstance(writer.sink, StreamSink)
    assert (writer.sink.name, writer.checkpoint) == ("shop.orders", str(tmp_path))


def test_a_delta_table_is_written_by_the_sink_of_this_package(tmp_path: Path) -> None:
    sink = {"format": "deltalake", "path": str(tmp_path / "table"), "options": {"partition_by": ["day", "shop"]}}
    writer = batch_writer(parse({**LEAST, "checkpoint": str(tmp_path), "sink": sink}, "r.yaml"))

    assert isinstance(writer.sink, DeltaSink)
    assert (writer.sink.name, writer.checkpoint) == (LEAST["receiver"], str(tmp_path))
    assert writer.sink._partitions == ("day", "shop")
    assert refusal({"sink": {"format": "deltalake"}}).startswith("r.yaml lacks sink.path (where the deltalake files")
    sink["options"] = {"mergeSchema": True}
    assert refusal({"sink": sink}).startswith("r.yaml: sink.options.mergeSchema is not known")


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
def test_a_syntax_error_of_yaml_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"none.yaml cannot be read: No such file or directory; wallaroo-spark receive --sample",
    ):
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


MANY = """\
receiver: orders
wokers: 2
memoryBudget: much
checkpoint: ck
cookie: env:NOWHERE_TO_BE_FOUND
sink:
  format: parquet
  path: rows
  mode: apend
trigger:
  availableNow: maybe
spark:
  master: local
"""


def test_all_problems_of_a_file_are_found_each_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, MANY)

    config, found = problems(file)

    assert config is None
    assert [(error.fields["line"], error.fields["option"]) for error in found] == [
        (2, "wokers"),
        (3, "memoryBudget"),
        (5, "cookie"),
        (9, "sink.mode"),
        (11, "trigger.availableNow"),
        (13, "spark.master"),
    ]
    assert found[0].message == f"{file}, line 2: wokers is not known; did you mean workers?"
    with pytest.raises(ConfigurationError, match="line 2: wokers is not known"):
        load(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "workers: 2\nreceiver: a\nworkers: 4\n",
            "line 3: workers is given twice, first in line 1; remove one of them",
        ),
        (
            "receiver: a\nsink:\n  path: p\n  format: noop\n  path: q\n",
            "line 5: sink.path is given twice, first in line 3; remove one of them",
        ),
    ],
)
def test_a_name_that_yaml_would_silently_take_from_its_last_line_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(written(tmp_path, text))


def test_a_mapping_that_an_alias_puts_into_itself_is_read_once(tmp_path: Path) -> None:
    text = "receiver: a\ncheckpoint: c\nsink: &sink\n  format: noop\n  options: {again: *sink}\nwokers: 2\n"

    _, found = problems(written(tmp_path, text))

    assert [error.fields["line"] for error in found] == [6]


def test_a_problem_of_an_override_names_the_override(tmp_path: Path) -> None:
    file = written(tmp_path, "receiver: a\ncheckpoint: c\nworkers: 2\nsink: {format: noop}\n")

    _, found = problems(file, ["workers=none", "trigger.availableNow=perhaps"])

    assert [error.message.partition(": ")[0] for error in found] == ["--set workers", "--set trigger.availableNow"]


def test_a_name_that_a_receiver_refuses_is_a_problem_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "receive.yaml"
    path.write_text("receiver: two words\ncheckpoint: c\nsink: {format: noop}\n", encoding="utf-8")

    config, (problem,) = problems(str(path))

    assert config is None
    assert str(problem).startswith(f"{path}, line 1: receiver name 'two words': use 1 to 100 letters")


def test_options_that_cannot_work_together_are_a_problem_of_the_file(tmp_path: Path) -> None:
    text = "receiver: a\ncheckpoint: c\nport: 7000\ninnerPort: 7001\nworkers: 4\nsink: {format: noop}\n"

    config, found = problems(written(tmp_path, text))

    assert config is None
    assert [error.fields["line"] for error in found] == [4]
    assert "share ports" in found[0].message


def test_validate_prints_each_problem_and_its_count(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(cli, ["validate", written(tmp_path, MANY)])

    assert outcome.exit_code == 1
    assert outcome.stdout.count("r.yaml, line ") == 6
    assert outcome.stderr.endswith("r.yaml: 6 problems.\n")


def test_validate_as_json_has_lines_and_names(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(cli, ["validate", "--json", written(tmp_path, MANY)])

    answer = json.loads(outcome.stdout)
    assert (answer["valid"], len(answer["problems"])) == (False, 6)
    assert answer["problems"][0]["line"] == 2


def test_the_printed_sample_is_valid_and_the_one_in_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALLAROO_COOKIE", "c")
    sample = CliRunner().invoke(cli, ["receive", "--sample"]).stdout

    outcome = CliRunner().invoke(cli, ["validate", written(tmp_path, sample)])

    assert sample == (CONF / "receive.yaml").read_text(encoding="utf-8")
    assert outcome.exit_code == 0, outcome.stdout
    assert outcome.stdout.endswith("r.yaml is valid: receiver 'orders', 2 workers, parquet into ./receive/rows.\n")
