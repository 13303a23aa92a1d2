"""Tables of settings: the constructors and the page that are made from them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import MISSING, dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from proving.pages.settings import TABLES, settings_page
from tests.waiting import SECONDS
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import (
    Kind,
    Row,
    check,
    check_all,
    function_takes_settings,
    row,
    rows,
    setting,
    takes_settings,
)

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"


@dataclass(frozen=True, kw_only=True)
class PumpSettings:
    """The settings of a pump."""

    name: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Its name."""
    litres: int = setting(3, Kind.COUNT, minimum=1, maximum=9)
    """Litres a minute."""
    pause: float | None = setting(1.5, Kind.SECONDS, minimum=0)
    """Seconds between strokes; None: no pause."""
    mode: str = setting("slow", Kind.TEXT, choices=("slow", "fast"))
    """How fast."""
    password: str = setting("", Kind.TEXT, secret=True)
    """Who may switch it on."""
    quiet: bool = setting(False, Kind.FLAG)
    """Whether it makes no noise."""

    def __post_init__(self) -> None:
        check_all(self)


class Pump:
    """Pumps."""

    @takes_settings(PumpSettings)
    def __init__(self, settings: PumpSettings) -> None:
        """The settings:"""
        self.settings = settings


@function_takes_settings(PumpSettings)
def pump(settings: PumpSettings) -> str:
    """Pump once. The settings:"""
    return settings.name


def test_arguments_become_the_table() -> None:
    assert Pump("a", litres=5).settings == PumpSettings("a", litres=5)
    assert Pump("a", pause=None).settings.pause is None
    assert pump("a", mode="fast") == "a"


@pytest.mark.parametrize("called", [Pump, pump])
def test_an_unknown_argument_is_refused_with_the_nearest_name(called: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{called.__name__}\(\) has no setting 'litre'; did you mean litres\?$"):
        called("a", litre=5)
    with pytest.raises(TypeError, match=r"has no setting 'zzz'$"):
        called("a", zzz=5)
    with pytest.raises(TypeError, match="name"):
        called()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"litres": 0}, "setting litres: 0 is not 1 or more"),
        ({"litres": 10}, "setting litres: 10 is above 9"),
        ({"litres": "5"}, "setting litres: '5' is not an int; write 5 without quotes"),
        ({"litres": None}, "setting litres: None is not an int"),
        ({"pause": "1s"}, r"setting pause: '1s' is not a number \(seconds\); write the number of seconds, such as 1.5"),
        ({"pause": float("nan")}, "setting pause: nan is not 0 or more"),
        ({"mode": "off"}, "setting mode: 'off' is not one of slow, fast"),
        ({"litres": True}, "setting litres: True is not an int"),
        ({"litres": 5.0}, "setting litres: 5.0 is not an int; write 5"),
        ({"quiet": "no"}, "setting quiet: 'no' is not a bool"),
        ({"password": 7}, "setting password: a value of type int is not a str"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_expected_form(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{complaint} \[(option-out-of-range|argument-type)\]$") as caught:
        Pump("a", **given)
    assert caught.value.fields == {"option": next(iter(given))}


def test_signature_and_docstring_come_from_the_table() -> None:
    assert list(inspect.signature(Pump).parameters) == [row.name for row in rows(PumpSettings)]
    assert inspect.signature(Pump).parameters["litres"].default == 3
    assert inspect.signature(pump).return_annotation == "str"
    for documented in (Pump.__init__, pump):
        assert "- ``litres`` (default ``3``): Litres a minute." in (documented.__doc__ or "")
        assert "- ``name``: Its name." in (documented.__doc__ or "")


def test_a_secret_is_not_in_the_repr() -> None:
    assert "hush" not in repr(PumpSettings("a", password="hush"))


SNIPPETS = """\
from wallaroo_spark import sinks
from wallaroo_spark.connector import Backoff, BlockingConnector, Connector
Connector("orders", instance="shop-1", workers="host:7100", retry=Backoff(maximum=3.0))
Connector("orders", instance="shop-1", wrokers="host:7100")
BlockingConnector("orders", instance="shop-1", wrokers="host:7100")
BlockingConnector("orders", workers="host:7100")
BlockingConnector("orders", instance="shop-1", max_unacknowledged="64m")
with BlockingConnector("orders", instance="shop-1", workers=["host:7100"]) as connector:
    stream = connector.open("a")
    number: int = stream.send(b"x", id=17, key=b"k")
    stream.send("x")
    connector.drain(timout=1.0)
sinks.files("/out", checkpoint="/checkpoint", name="orders")
sinks.files("/out", checkpoint="/checkpoint", nmae="orders")
from wallaroo_spark.pubsub import Topic, TopicSource, subscribe
Topic(None, "totals", checkpoint="/checkpoint", partitions=2)
Topic(None, "totals", checkpoint="/checkpoint", partitoins=2)
subscribe("totals", registry="redis://redis", wait="60")
TopicSource("totals", registry="redis://redis", atomic=False)
sinks.connector("sink:7200", checkpoint="/checkpoint", name="orders", cooky="x")
"""
ERRORS = {
    4: 'Unexpected keyword argument "wrokers"',
    5: 'Unexpected keyword argument "wrokers"',
    6: 'Missing named argument "instance"',
    7: 'incompatible type "str"; expected "int"',
    11: 'incompatible type "str"; expected "bytes',
    12: 'Unexpected keyword argument "timout"',
    14: 'Unexpected keyword argument "nmae"',
    17: 'Unexpected keyword argument "partitoins"',
    18: 'incompatible type "str"; expected "float"',
    19: 'Unexpected keyword argument "atomic"',
    20: 'Unexpected keyword argument "cooky"',
}
"""By line of the snippets what mypy says; it says nothing of the other lines."""


def test_a_wrong_argument_is_an_error_for_mypy(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPETS, encoding="utf-8")

    # In a process of its own: what mypy keeps in memory would make each later collection of garbage slow in this one.
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(snippet)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)

    assert done.stderr == ""
    errors = [line.split(":", 3)[1:] for line in done.stdout.splitlines() if ": error: " in line]
    found = {int(number): text for number, _, text in errors}
    assert {number: text for number, text in found.items() if ERRORS.get(number, "none") not in text} == {}
    assert sorted(found) == sorted(ERRORS)


def test_the_page_is_the_one_the_tables_make() -> None:
    written = PAGE.read_text(encoding="utf-8")

    assert written == settings_page(), "run: python -m proving.pages"


def test_every_setting_is_explained() -> None:
    def unexplained(row: Row) -> bool:
        return not row.help.endswith(".") or (not row.annotation and row.default is not MISSING)

    assert [row.name for _, table in TABLES for row in rows(table) if unexplained(row)] == []


@pytest.mark.parametrize(
    ("number", "text"),
    [(1 << 20, "1048576"), (1e16, "10000000000000000"), (0.25, "0.25"), (1e-7, "0.0000001"), (-3.0, "-3")],
)
def test_a_limit_is_printed_without_an_exponent(number: float, text: str) -> None:
    limited = next(
        rows(make_dataclass("Limited", [("size", float, setting(0, Kind.NUMBER, "A size.", maximum=number))]))
    )

    with pytest.raises(ConfigurationError, match=rf"is above {text} \[option-out-of-range\]$"):
        check(limited, number + max(1, abs(number)), "setting size")
