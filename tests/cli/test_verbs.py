"""A verb is a function: its signature makes the arguments and options, its docstring their texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from tests.cli.test_main import verbs
from wallaroo_spark.cli.main import cli
from wallaroo_spark.cli.verbs import Json, Number, _texts, options_of, row_of, verb
from wallaroo_spark.settings import Kind, row, setting


@dataclass(frozen=True, kw_only=True)
class KettleSettings:
    """A table of settings."""

    litres: int = setting(3, Kind.COUNT, minimum=1, maximum=9)
    """How much fits in."""
    mode: str = field(metadata=row(Kind.TEXT, choices=("slow", "fast")))
    """How it boils."""


@dataclass(frozen=True)
class KitchenOptions:
    """Options that verbs share.

    Options:
        --kitchen NAME: Where it stands.
    """

    kitchen: str = "here"


@verb()
def boil(
    teas: Annotated[tuple[str, ...], "TEA..."],
    *,
    place: KitchenOptions,
    litres: Annotated[int, row_of(KettleSettings, "litres")],
    minutes: Annotated[float | None, click.FloatRange(0)] = None,
    log: Path | None = None,
    guests: Annotated[tuple[str, ...], "--guest"] = (),
    quick: bool = False,
    as_json: Json = False,
) -> None:
    """Make tea.

    Options:
        --minutes MINUTES: How long
            it stays in.
        --log: A file.
        --guest NAME: Who gets some.
        --quick: Do not wait.
        --json: Print JSON.

    Examples:
        boil green black
        boil green --quick
    """
    click.echo((teas, place, litres, minutes, log, guests, quick, as_json))


def test_a_call_has_the_values_of_the_command_line_and_the_defaults() -> None:
    plain = CliRunner().invoke(boil, ["green"])
    given = ["green", "black", "--kitchen", "there", "--litres", "9", "--minutes", "2", "--log", "l", "--guest", "Ann"]
    whole = CliRunner().invoke(boil, [*given, "--guest", "Bo", "--quick", "--json"])

    assert plain.output.strip() == str((("green",), KitchenOptions(), 3, None, None, (), False, False))
    values = (("green", "black"), KitchenOptions("there"), 9, 2.0, Path("l"), ("Ann", "Bo"), True, True)
    assert whole.output.strip() == str(values)


@pytest.mark.parametrize("wrong", [[], ["green", "--litres", "10"], ["green", "--minutes", "-1"], ["green", "--wet"]])
def test_what_the_signature_does_not_permit_is_refused(wrong: list[str]) -> None:
    assert CliRunner().invoke(boil, wrong).exit_code == 2


def test_the_help_has_the_texts_of_the_docstrings_and_of_the_table() -> None:
    lines = [" ".join(line.split()) for line in CliRunner().invoke(boil, ["--help"]).output.splitlines()]

    assert lines[0] == "Usage: boil [OPTIONS] TEA..."
    assert "--kitchen NAME Where it stands. [default: here]" in lines
    assert "--litres INTEGER RANGE How much fits in. [default: 3; 1<=x<=9]" in lines
    assert "--minutes MINUTES How long it stays in. [x>=0]" in lines
    assert lines[-3:] == ["Examples:", "boil green black", "boil green --quick"]


def test_the_settings_of_a_table_are_options() -> None:
    litres, mode = options_of(KettleSettings)

    assert (litres.opts, litres.default, litres.required) == (["--litres"], 3, False)
    assert isinstance(mode.type, click.Choice)
    assert mode.required
    assert [one.name for one in options_of(KettleSettings, "mode")] == ["litres"]


def test_an_option_without_a_text_is_refused() -> None:
    def silent(*, loud: bool = False) -> None:
        """Say nothing."""

    with pytest.raises(KeyError, match="--loud"):
        verb()(silent)


def test_every_text_of_a_verb_is_that_of_an_option() -> None:
    found = dict(verbs(cli, click.Context(cli, info_name="wallaroo-spark")))
    described = {name: _texts(command.callback).options.keys() for name, command in found.items()}
    flags = {name: {flag for one in command.params for flag in one.opts} for name, command in found.items()}

    assert {name: texts - flags[name] for name, texts in described.items() if not texts <= flags[name]} == {}


def test_every_number_of_every_verb_is_finite() -> None:
    found = dict(verbs(cli, click.Context(cli, info_name="wallaroo-spark")))
    floats = {
        (name, one.name): one.type
        for name, command in found.items()
        for one in command.params
        if isinstance(one.type, type(click.FLOAT) | click.FloatRange)
    }

    assert len(floats) > 20
    assert {place for place, kind in floats.items() if not isinstance(kind, Number)} == set()
