"""The table of options: conversion between texts and values, refused values, and secrets."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving.pages.options import options_page
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import Options, public_name, read_value, resolve_secret, table
from wallaroo_spark.settings import Kind, Row

ROWS = list(table())
SECRETS = [row for row in ROWS if row.secret]
REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "options.md"

NAMES = st.text(st.characters(categories=("L", "N")), min_size=1)


def named(row: Row) -> str:
    return row.name


def as_keyword(row: Row, value: Any) -> dict[str, Any]:
    return {row.attribute: value}


def values(row: Row) -> st.SearchStrategy[Any]:
    """Values that the row allows."""
    least = int(row.minimum or 0)
    if row.choices:
        return st.sampled_from(row.choices)
    match row.kind:
        case Kind.TEXT:
            return st.text()
        case Kind.NAMES:
            return st.lists(NAMES).map(tuple)
        case Kind.COUNT:
            return st.integers(least, int(min(row.maximum or 10_000, 10_000)))
        case Kind.BYTES:
            return st.integers(least, int(row.maximum or 1 << 40))
        case Kind.SECONDS:
            return st.integers(least * 1000 + 500, 10_000_000).map(lambda milliseconds: milliseconds / 1000)
        case Kind.FLAG:
            return st.booleans()
        case Kind.JSON:
            references = st.dictionaries(st.integers(0, 2**64 - 1).map(str), st.integers(0, 2**64 - 1))
            return st.dictionaries(NAMES, references)
    raise AssertionError(f"no values of kind {row.kind} are known")


@pytest.mark.parametrize("row", ROWS, ids=named)
@given(data=st.data())
def test_an_option_comes_back_from_its_text(row: Row, data: st.DataObject) -> None:
    options = dataclasses.replace(Options(), **{row.attribute: data.draw(values(row))})

    assert Options.parse(options.to_texts()) == options


def test_a_name_is_found_in_any_case() -> None:
    text = {Kind.COUNT: "7", Kind.BYTES: "2m", Kind.SECONDS: "7s", Kind.FLAG: "true", Kind.JSON: '{"a": {"1": 2}}'}
    for row in ROWS:
        value = row.choices[-1] if row.choices else text.get(row.kind, "seven")

        lower, upper = Options.parse({row.name.lower(): value}), Options.parse({row.name.upper(): value})

        assert lower == upper, row.name
        assert getattr(lower, row.attribute) == read_value(row, value), row.name


def test_defaults_need_no_text() -> None:
    assert Options().to_texts() == {}
    assert Options.parse({}) == Options()


def test_public_names_are_camel_case_and_apart() -> None:
    assert public_name("max_frame_bytes") == "maxFrameBytes"
    assert public_name("tls_certificate") == "tls.certificate"
    assert public_name("port") == "port"
    assert len({row.name.lower() for row in ROWS}) == len(ROWS)


def test_options_travel_between_processes() -> None:
    options = Options(receiver="orders", workers=3, starting_offsets={"shop-1": {"7": 1200}}, instances=("shop-1",))

    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("65536", 65536),
        (65536, 65536),
        ("64k", 65536),
        ("64K", 65536),
        ("64kb", 65536),
        ("64KiB", 65536),
        (" 2 m ", 2 << 20),
        ("1g", 1 << 30),
    ],
)
def test_bytes_take_units(text: Any, count: int) -> None:
    assert Options.parse({"maxFrameBytes": text}).max_frame_bytes == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2", 2.0),
        ("1500ms", 1.5),
        ("2.5s", 2.5),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("7d", 604_800.0),
        (3, 3.0),
        (0.5, 0.5),
    ],
)
def test_times_take_units(text: Any, seconds: float) -> None:
    assert Options.parse({"quietSeconds": text}).quiet_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "flag"), [("true", True), (" False ", False), (True, True), (False, False)])
def test_flags_are_words_or_yaml_booleans(text: Any, flag: bool) -> None:
    assert Options.parse({"failOnDataLoss": text}).fail_on_data_loss is flag


@pytest.mark.parametrize("given_", ["shop-1, shop-2,", ["shop-1", "shop-2"]])
def test_names_are_a_list_or_separated_by_commas(given_: Any) -> None:
    assert Options.parse({"instances": given_}).instances == ("shop-1", "shop-2")


@pytest.mark.parametrize("given_", ['{"shop-1": {"7": 1200}}', {"shop-1": {7: "1200"}}])
def test_starting_offsets_are_json_or_yaml(given_: Any) -> None:
    assert Options.parse({"startingOffsets": given_}).starting_offsets == {"shop-1": {"7": 1200}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("workers", "two"),
        ("workers", "1.5"),
        ("maxFrameBytes", "4 megs"),
        ("maxFrameBytes", "-1"),
        ("quietSeconds", "2 y"),
        ("quietSeconds", ""),
        ("failOnDataLoss", "yes"),
        ("startingOffsets", "{"),
        ("startingOffsets", '{"a": {"x": 1}}'),
    ],
)
def test_a_text_that_cannot_be_parsed_is_named_with_the_expected_form(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Options.parse({name: text})

    assert caught.value.message.startswith(f"option {name}: {text!r} cannot be read; expected ")
    assert caught.value.fields == {"option": name}


@pytest.mark.parametrize("row", [row for row in ROWS if row.minimum], ids=named)
def test_a_value_below_its_bound_is_refused_and_the_bound_is_allowed(row: Row) -> None:
    assert row.minimum is not None
    assert getattr(Options(**as_keyword(row, row.minimum)), row.attribute) == row.minimum

    with pytest.raises(ConfigurationError, match=rf"option {row.name}: .* is not "):
        Options(**as_keyword(row, row.minimum - 1))


@pytest.mark.parametrize("row", [row for row in ROWS if row.choices], ids=named)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(row: Row) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Options.parse({row.name: "sideways"})

    assert caught.value.message == f"option {row.name}: 'sideways' is not one of {', '.join(row.choices)}"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"option maxFrameByte is not known; did you mean maxFrameBytes\?"):
        Options.parse({"maxFrameByte": "4m"})


def test_a_name_unlike_any_other_points_to_the_page() -> None:
    with pytest.raises(ConfigurationError, match=r"option zzz is not known; docs/options\.md lists all options"):
        Options.parse({"zzz": "1"})


@pytest.mark.parametrize("row", SECRETS, ids=named)
def test_a_secret_is_never_shown(row: Row) -> None:
    options = Options(**as_keyword(row, "hush-hush"))

    assert "hush-hush" not in repr(options)
    assert "hush-hush" not in str(options)


def test_passwords_and_keys_are_among_the_secrets() -> None:
    assert {row.name for row in SECRETS} == {"registry", "cookie", "token", "statusPageToken"}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.TEXT, Kind.NAMES)])
def test_a_secret_that_cannot_be_read_is_not_quoted(kind: Kind) -> None:
    row = Row("pin", "pin", kind, default=None, help="", choices=(), secret=True, minimum=None, maximum=None)

    with pytest.raises(ConfigurationError) as caught:
        read_value(row, "hush-hush")

    assert "hush-hush" not in caught.value.message
    assert "hush-hush" not in repr(caught.value.fields)


def test_a_secret_comes_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALLAROO_TEST_COOKIE", "hush-hush")

    assert resolve_secret("env:WALLAROO_TEST_COOKIE") == "hush-hush"


def test_a_secret_comes_from_a_file_without_its_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "cookie"
    path.write_bytes(b" hush hush \r\n")

    assert resolve_secret(f"file:{path}") == " hush hush "


def test_a_missing_variable_or_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WALLAROO_TEST_COOKIE", raising=False)
    with pytest.raises(ConfigurationError, match="set WALLAROO_TEST_COOKIE"):
        resolve_secret("env:WALLAROO_TEST_COOKIE")
    with pytest.raises(ConfigurationError, match=r"none: cannot be read: No such file"):
        resolve_secret(f"file:{tmp_path}/none")


@pytest.mark.parametrize("value", ["", "plain", "redis://user:password@host:6379/0", "environment:x"])
def test_a_value_that_is_no_reference_is_the_secret_itself(value: str) -> None:
    assert resolve_secret(value) == value


def test_the_reference_page_is_the_one_the_table_makes() -> None:
    written = REFERENCE.read_text(encoding="utf-8")

    assert written == options_page(), "run: python -m proving.pages"


def test_every_option_is_explained_on_the_reference_page() -> None:
    page = REFERENCE.read_text(encoding="utf-8")

    assert [row.name for row in ROWS if not row.help.endswith(".")] == []
    assert [row.name for row in ROWS if f"| `{row.name}` |" not in page] == []


def test_a_port_above_the_highest_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="option port: 70000 is above 65535"):
        Options(port=70_000)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="option leaseSeconds: nan is not"):
        Options(lease_seconds=float("nan"))


@pytest.mark.parametrize("seconds", [0.000001, 0.5, 1e16, 86_400.0])
def test_any_number_of_seconds_survives_being_written(seconds: float) -> None:
    options = Options(replay_timeout=seconds)

    assert Options.parse(options.to_texts()) == options


def test_a_secret_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cookie"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigurationError, match="the file is not UTF-8 text"):
        resolve_secret(f"file:{path}")
