"""The docstring of a field of a dataclass or NamedTuple adds a unit or a meaning to its name and type.

A number of type ``float`` always says its unit, unless it is a row of a table, which has its unit. A text that only
repeats the names of the field, its class and its type is deleted, unless it is the help of such a row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("wallaroo_spark", "proving")
FIELDS = 3
"""A class with fewer fields may describe them in its own docstring."""
SMALL = "a an as each has in is it its name of one own s that the this which whole with"
SMALL_WORDS = frozenset(SMALL.split())
Field = tuple[ast.ClassDef, ast.AnnAssign, str | None, int]
"""The class of a field, its declaration, its docstring, and the number of fields of the class."""


def _is_record(node: ast.ClassDef) -> bool:
    names = [ast.unparse(expression) for expression in (*node.decorator_list, *node.bases)]
    return any(name.partition("(")[0].rpartition(".")[2] in ("dataclass", "NamedTuple") for name in names)


def fields(source: str) -> Iterator[Field]:
    """The public fields of the records in a module's text."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or not _is_record(node):
            continue
        found = [
            (statement, following)
            for statement, following in zip(node.body, [*node.body[1:], None], strict=True)
            if isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and not statement.target.id.startswith("_")
            and not ast.unparse(statement.annotation).startswith(("ClassVar", "KW_ONLY"))
        ]
        for field, following in found:
            text = following.value if isinstance(following, ast.Expr) else None
            yield node, field, str(text.value) if isinstance(text, ast.Constant) else None, len(found)


def numbers_without_unit(source: str) -> Iterator[str]:
    """The fields of type float without a docstring, as ``Class.field``."""
    for node, field, text, count in fields(source):
        value = ast.unparse(field.value) if field.value is not None else ""
        has_help = value.startswith(("setting(", "figure(")) or "metadata=row(" in value
        is_number = ast.unparse(field.annotation).split(" | ")[0] == "float"
        if count >= FIELDS and is_number and not has_help and not text:
            yield f"{node.name}.{ast.unparse(field.target)}"


def repetitions(source: str) -> Iterator[str]:
    """The docstrings that repeat the names of field, class and type, as ``Class.field: text``."""
    for node, field, text, _ in fields(source):
        names = f"{ast.unparse(field.target)} {node.name} {ast.unparse(field.annotation)}"
        value = ast.unparse(field.value) if field.value is not None else ""
        is_help = value.startswith("setting(") or "metadata=row(" in value
        if text and not is_help and words(text) <= words(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", names)) | SMALL_WORDS:
            yield f"{node.name}.{ast.unparse(field.target)}: {text}"


def words(text: str) -> set[str]:
    """The words of a text, in the singular."""
    return {word if word in SMALL_WORDS else word.removesuffix("s") for word in re.findall(r"[a-z]+", text.lower())}


@pytest.mark.parametrize("rule", [numbers_without_unit, repetitions])
def test_the_docstring_of_a_field_says_what_its_name_does_not(rule: Callable[[str], Iterator[str]]) -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: {field}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for field in rule(path.read_text(encoding="utf-8"))
    ]
    assert not offenders, "\n".join(offenders)


def test_a_number_without_a_unit_and_a_repetition_are_found() -> None:
    source = (
        "@dataclass(frozen=True)\nclass Stage:\n    wait: float = setting(1)\n    age: float\n"
        "    owner: str\n    'Its owner.'\n"
        "    members: list[Member]\n    'The members of this stage.'\n    load: float | None\n    'Rows a second.'\n"
    )
    assert list(numbers_without_unit(source)) == ["Stage.age"]
    assert [field.partition(":")[0] for field in repetitions(source)] == ["Stage.owner", "Stage.members"]
