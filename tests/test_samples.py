"""The samples in conf/ are right: options that exist, room for the workers, no secret written down."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from wallaroo_spark.options import Options, table

CONF = Path(__file__).resolve().parents[1] / "conf"
PROPERTIES = sorted(CONF.glob("*.conf"))


def properties(path: Path) -> dict[str, str]:
    """A properties file as spark-submit reads it: name, white space, value; # begins a comment line."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split(maxsplit=1) for line in lines)


def sample() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF / "receive.yaml").read_text(encoding="utf-8"))
    return found


def test_the_yaml_sample_holds_options_a_checkpoint_a_sink_and_a_trigger() -> None:
    given = sample()
    checkpoint, sink, trigger = (given.pop(name) for name in ("checkpoint", "sink", "trigger"))

    options = Options.parse(given)

    assert options.receiver == "orders"
    assert isinstance(checkpoint, str)
    assert set(sink) == {"format", "path", "options"}
    assert set(trigger) <= {"processingTime", "availableNow"}


def test_the_yaml_sample_writes_no_secret_down() -> None:
    given = sample()
    secrets = {row.name: given[row.name] for row in table() if row.secret and row.name in given}

    assert secrets == {"registry": "embedded", "cookie": "env:WALLAROO_COOKIE"}


@pytest.mark.parametrize("path", PROPERTIES, ids=lambda path: path.name)
def test_a_properties_file_sets_names_of_spark_once_each(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^(\S+)\s+\S", re.sub(r"^#.*$", "", text, flags=re.MULTILINE), flags=re.MULTILINE)

    assert names
    assert [name for name in names if not name.startswith("spark.")] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", PROPERTIES, ids=lambda path: path.name)
def test_a_properties_file_leaves_a_task_slot_for_the_batches(path: Path) -> None:
    given = properties(path)
    local = re.fullmatch(r"local\[(\d+)\]", given.get("spark.master", ""))
    if local:
        slots = int(local[1])
    elif "spark.cores.max" in given:
        slots = int(given["spark.cores.max"])
    else:
        slots = int(given["spark.executor.instances"]) * int(given["spark.executor.cores"])

    assert slots >= Options.parse({"workers": sample()["workers"]}).workers + 1


@pytest.mark.parametrize("folder", ["examples", "jobs", "proving", "wallaroo_spark"])
def test_a_session_that_the_repository_makes_has_no_ui_on_every_interface(folder: str) -> None:
    root = CONF.parent / folder
    texts = {path.name: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}

    made = {name: text for name, text in texts.items() if "SparkSession.builder" in text}
    # It is given its settings by proving/bench/sections/kafka.py.
    made.pop("kafka_query.py", None)
    assert [name for name, text in made.items() if not re.search(r"THIS_MACHINE|spark\.ui\.enabled", text)] == []
