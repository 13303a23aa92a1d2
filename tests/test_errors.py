"""The tree of errors: as drawn in its module's docstring, and whole after a journey between processes."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from wallaroo_spark import errors
from wallaroo_spark.errors import LONGEST_LINE, WallarooError, one_line, printable, split_code
from wallaroo_spark.protocol import Fault, broken

SOURCE = Path(errors.__file__).parent
FORGED = "gone\n2026-01-01 ERROR all is lost\x1b[2J\u202e\r\x07 100 %s"


def classes(root: type[WallarooError] = WallarooError) -> Iterator[type[WallarooError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


def drawn_tree() -> dict[str, str | None]:
    """Each class that the docstring's drawing names, with the class it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        found = re.match(r"^    ([│ ]*(?:[├└]── )?)([A-Z]\w+Error)\b", line)
        if not found:
            continue
        depth, name = len(found[1]), found[2]
        while path and path[-1][0] >= depth:
            path.pop()
        parents[name] = path[-1][1] if path else None
        path.append((depth, name))
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    real: dict[str, str | None] = {kind.__name__: kind.__mro__[1].__name__ for kind in classes()}
    real["WallarooError"] = None

    assert drawn_tree() == real


@pytest.mark.parametrize("kind", list(classes()), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_with_its_fields(kind: type[WallarooError]) -> None:
    error = kind("stream 7: nothing came within 5 s; raise replayTimeout", stream=7, seconds=5.0, names=("a", "b"))

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert copy.message == str(copy) == "stream 7: nothing came within 5 s; raise replayTimeout"
    assert copy.fields == {"stream": 7, "seconds": 5.0, "names": ("a", "b")}
    assert copy.code == ""


@pytest.mark.parametrize("kind", list(classes()), ids=lambda kind: kind.__name__)
def test_an_error_ends_with_its_code_also_after_pickling(kind: type[WallarooError]) -> None:
    error = kind("nothing came\nwithin 5 s; raise replayTimeout", code="resend-missing", stream=7)

    for one in (
        error,
        pickle.loads(pickle.dumps(error)),
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error)))),
    ):
        assert str(one) == "nothing came\nwithin 5 s; raise replayTimeout [resend-missing]"
        assert one.message == "nothing came\nwithin 5 s; raise replayTimeout"
        assert one.code == "resend-missing"
        assert one.fields == {"stream": 7}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("no room [sink-write-failed]", ("no room", "sink-write-failed")),
        ("two\nlines [query-failed]\n", ("two\nlines", "query-failed")),
        ("a [wrong-cookie] b [refused]", ("a [wrong-cookie] b", "refused")),
        ("listens at [::1]", ("listens at [::1]", "")),
        ("no code", ("no code", "")),
        ("", ("", "")),
    ],
)
def test_a_text_is_split_into_message_and_code(text: str, parts: tuple[str, str]) -> None:
    assert split_code(text) == parts


def test_the_reason_for_a_peer_has_no_code() -> None:
    """An ERROR frame has the message alone, as the worked sessions in the page of the protocol show."""
    error = broken(Fault.WRONG_COOKIE, "the cookie is not the one that is expected here")

    assert error.message == "the cookie is not the one that is expected here"
    assert str(error) == f"{error.message} [wrong-cookie]"


def test_every_error_says_what_it_means() -> None:
    assert [kind for kind in classes() if kind.__doc__ in (None, "", kind.__mro__[1].__doc__)] == []


def test_only_passing_errors_are_retryable() -> None:
    assert {kind.__name__ for kind in classes() if kind.retryable} == {"TransportError", "RegistryError"}


def test_the_root_is_caught_with_every_error() -> None:
    for kind in classes():
        with pytest.raises(WallarooError):
            raise kind("anything")


def test_unprintable_characters_are_escaped_and_the_rest_stays() -> None:
    assert printable("Grüße, 日本: 100 %") == "Grüße, 日本: 100 %"
    assert printable(FORGED) == "gone\\n2026-01-01 ERROR all is lost\\x1b[2J\\u202e\\r\\x07 100 %s"


def test_an_error_shows_nothing_that_a_terminal_acts_on() -> None:
    error = errors.RemoteProtocolError(f"it says: {FORGED}")

    assert "\x1b" not in str(error)
    assert all(line.isprintable() for line in str(error).split("\n"))


def test_a_log_line_is_one_line_whatever_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    log = one_line(logging.getLogger("wallaroo_spark.test"))
    log.warning("%s: %s", 1, FORGED)
    log.warning("%s", "x" * 100_000)
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("it failed")

    first, second, third = caplog.records
    assert first.getMessage() == f"1: {printable(FORGED)}"
    assert len(second.getMessage()) < LONGEST_LINE + 100
    assert "\x1b" not in logging.Formatter().format(third)


def test_every_logger_of_the_package_writes_printable_lines() -> None:
    made = {
        f"{path.relative_to(SOURCE)}: {line}": before
        for path in SOURCE.rglob("*.py")
        for line, before in re.findall(r"^(\w+ = (.*)logging\.getLogger\(.*)", path.read_text("utf-8"), re.MULTILINE)
    }

    assert made
    assert [line for line, before in made.items() if before != "one_line("] == []
