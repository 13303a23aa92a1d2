"""Each field of a dataclass or NamedTuple says its meaning and unit in a docstring of its own.

A field whose default is made by :func:`wallaroo_spark.settings.setting`, or whose metadata is a row of a table, has its
help text there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("wallaroo_spark", "proving")
FIELDS = 3
"""A class with fewer fields may describe them in its own docstring."""


def _is_record(node: ast.ClassDef) -> bool:
    names = [ast.unparse(expression) for expression in (*node.decorator_list, *node.bases)]
    return any(name.partition("(")[0].rpartition(".")[2] in ("dataclass", "NamedTuple") for name in names)


def undocumented_fields(source: str) -> Iterator[str]:
    """The fields without a docstring, as ``Class.field``, of the records in a module's text."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or not _is_record(node):
            continue
        fields = [
            (statement, following)
            for statement, following in zip(node.body, [*node.body[1:], None], strict=True)
            if isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and not statement.target.id.startswith("_")
            and not ast.unparse(statement.annotation).startswith(("ClassVar", "KW_ONLY"))
        ]
        if len(fields) < FIELDS:
            continue
        for field, following in fields:
            value = ast.unparse(field.value) if field.value is not None else ""
            has_help = value.startswith("setting(") or "metadata=row(" in value
            documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if not has_help and not documented:
                yield f"{node.name}.{ast.unparse(field.target)}"


def test_each_field_of_a_record_has_a_docstring() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: {field}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for field in undocumented_fields(path.read_text(encoding="utf-8"))
    ]
    assert not offenders, "\n".join(offenders)


def test_a_field_without_a_docstring_is_found() -> None:
    source = (
        "@dataclass(frozen=True)\nclass A:\n    a: int\n    'A.'\n    b: int = setting(1)\n    c: int\n    _d: int\n"
    )
    assert list(undocumented_fields(source)) == ["A.c"]
