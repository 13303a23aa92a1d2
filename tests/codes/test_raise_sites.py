"""Every error of the package names its code, and every code of the table is named somewhere: read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.test_errors import classes
from tests.test_imports import FILES, relative
from wallaroo_spark.codes import ENTRIES, titles
from wallaroo_spark.connector import CONNECTOR_CODES
from wallaroo_spark.protocol import Fault

ERRORS = {kind.__name__ for kind in classes()}
WITHOUT = {
    "errors.py": "it rebuilds errors whose code is an argument",
}
"""Files whose calls are no places of an error of their own."""
TO_DO = {"pipelines"}
"""Rooms whose errors have no codes yet."""


class Place(NamedTuple):
    """A place in the source at which an error of the package is made."""

    where: str
    """File and line."""
    code: ast.expr | None
    """The expression of its code; None without one."""


def called(call: ast.Call) -> str:
    """The last part of the name of a called function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def places(path: Path) -> Iterator[Place]:
    """The places of a file at which it makes an error, also one of the class of another error."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (called(node) in ERRORS or ast.unparse(node.func) == "type(error)"):
            code = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
            yield Place(f"{relative(path)}:{node.lineno}", code)


def literals(code: ast.AST) -> set[str]:
    """The texts in an expression or a file."""
    return {node.value for node in ast.walk(code) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def passes_on(code: ast.expr) -> bool:
    """Whether an expression passes on the code of another error, or a code that another place has chosen."""
    return any(isinstance(node, ast.Attribute | ast.Name) for node in ast.walk(code))


def all_places() -> list[Place]:
    return [
        place
        for path in FILES
        if relative(path) not in WITHOUT and relative(path).split("/")[0] not in TO_DO
        for place in places(path)
    ]


def every_text() -> set[str]:
    """All texts in the package, but those of the table of codes."""
    return {
        text
        for path in FILES
        if not relative(path).startswith("codes/")
        for text in literals(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_every_error_of_the_package_is_made_with_a_code() -> None:
    assert [where for where, code in all_places() if code is None or not (literals(code) or passes_on(code))] == []


def test_every_code_at_an_error_is_in_the_table() -> None:
    assert {
        where: unknown
        for where, code in all_places()
        if code is not None and (unknown := literals(code) - ENTRIES.keys() - {""})
    } == {}


def test_every_kind_of_violation_and_every_cause_is_in_the_table() -> None:
    assert (
        {str(fault) for fault in Fault} | titles("status").keys() | CONNECTOR_CODES.keys()
    ) - ENTRIES.keys() == set()


def test_every_code_of_the_table_is_used() -> None:
    assert ENTRIES.keys() - every_text() == set()


def test_a_place_without_a_code_is_found(tmp_path: Path) -> None:
    """The walk sees calls by name and by attribute, and codes that are missing."""
    source = 'raise errors.SinkError("no")\nraise SinkError("no", code="x")\nraise type(error)("no", code=error.code)\n'
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) in ERRORS]

    assert [any(keyword.arg == "code" for keyword in call.keywords) for call in calls] == [False, True]
