"""Rules that are read from the source itself: allowed imports, docstrings of public names, and reasons of silenced
lines."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.waiting import SECONDS

PACKAGE = "wallaroo_spark"
SOURCE = Path(__file__).resolve().parents[1] / PACKAGE
FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc")))
# Without generated code.

# The table of the design: for each room what it may import, a whole room or one module of it. A room's own modules and
# what EVERYBODY may import go without saying; "" is the package's own __init__.
EVERYBODY = (
    "errors",
    "options",
    "settings",
    "steps",
    "references",
    "event_loop",
    "lazy_names",
    "extras",
    "json_text",
    "texts",
)
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "": ("connector", "engine", "receiver", "streams"),
    "errors": (),
    "options": (),
    "settings": (),
    "steps": (),
    "references": (),
    "event_loop": (),
    "lazy_names": (),
    "extras": (),
    "json_text": (),
    "texts": (),
    "codes": (),
    "yaml_reader": (),
    "protocol": (),
    "columnar": ("protocol",),
    "transport": (),
    "registry": (),
    "storage": (),
    "sidecar": ("storage", "runtime.job_errors", "runtime.spark_checks"),
    "checkpoint": ("storage", "sidecar"),
    "inner": ("protocol.reserved", "columnar", "doors.kafka", "transport"),
    "runtime": ("registry", "transport"),
    "worker": ("protocol", "columnar", "transport", "aqueduct", "inner", "runtime", "doors"),
    "doors": ("protocol", "transport", "columnar"),
    "source": (
        "doors.kafka",
        "doors.otlp",
        "columnar",
        "registry",
        "inner",
        "sidecar",
        "checkpoint.power_loss",
        "runtime.spark_sessions",
        "runtime.python_tasks",
        "runtime.spark_checks",
    ),
    "otel": ("columnar.schema", "doors.http", "doors.otlp"),
    "receiver": (
        "transport",
        "registry",
        "sidecar",
        "checkpoint",
        "inner",
        "runtime",
        "worker",
        "source",
        "observe",
    ),
    "connector": ("codes", "protocol", "transport", "aqueduct", "registry"),
    "bridges": ("connector", "protocol", "transport"),
    "sinks": (
        "api.limits",
        "client.events",
        "columnar.python_values",
        "pipelines",
        "streams",
        "protocol",
        "transport",
        "storage",
        "sidecar",
        "checkpoint",
        "runtime.python_tasks",
        "runtime.spark_checks",
    ),
    "pubsub": (
        "columnar.python_values",
        "protocol.faults",
        "transport",
        "storage",
        "sidecar",
        "checkpoint",
        "registry",
        "runtime",
    ),
    "pipelines": ("api.limits", "sidecar", "storage", "yaml_reader"),
    "api": (),
    "aqueduct": ("transport",),
    "streams": ("sidecar", "storage", "checkpoint", "pipelines", "runtime.python_tasks"),
    "engine": (
        "registry",
        "storage",
        "sidecar",
        "checkpoint",
        "runtime",
        "pipelines",
        "streams",
        "gateway",
        "observe",
    ),
    "gateway": (
        "api",
        "pipelines",
        "registry",
        "checkpoint",
        "sidecar",
        "runtime",
        "storage",
        "streams",
        "transport",
    ),
    "client": ("api", "connector.arguments", "connector.backoff", "registry", "transport"),
    "wiretap": ("protocol", "transport", "connector", "aqueduct"),
    "conformance": ("api", "codes", "protocol", "transport", "wiretap"),
    "observe": (
        "codes",
        "protocol.reserved",
        "registry",
        "inner",
        "transport",
        "storage",
        "sidecar",
        "sinks.decision_log",
        "pubsub.topic_catalog",
        "streams",
        "worker.buffer",
        "runtime.job_errors",
        "runtime.long_jobs",
    ),
    "cli": (
        "codes",
        "columnar.python_values",
        "protocol",
        "transport",
        "aqueduct",
        "registry",
        "inner",
        "storage",
        "sidecar",
        "checkpoint",
        "runtime.job_errors",
        "runtime.python_tasks",
        "runtime.spark_checks",
        "receiver",
        "connector",
        "bridges",
        "sinks",
        "pubsub",
        "observe",
        "wiretap",
        "conformance",
        "pipelines",
        "engine",
        "yaml_reader",
        "client",
        "gateway.tokens",
        "streams.places",
    ),
    "testing": (
        "protocol",
        "columnar",
        "transport",
        "registry",
        "inner",
        "worker",
        "connector",
        "receiver",
        "wiretap",
        "yaml_reader",
        "pipelines",
        "engine.operator",
        "gateway",
        "client",
        "streams.inbox",
    ),
}

# These run where only the standard library, redis and tenacity may be counted on; api and client need grpcio and
# protobuf beside them, aqueduct needs aioquic.
LIGHT_ROOMS = (
    "api",
    "aqueduct",
    "bridges",
    "client",
    "codes",
    "connector",
    "protocol",
    "transport",
    "registry",
    "wiretap",
)
HEAVY_PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas")


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def files(of: str) -> list[Path]:
    """The Python files of a package."""
    return sorted((SOURCE.parent / of).rglob("*.py"))


def module_of(path: Path, of: str = PACKAGE) -> str:
    """A file's dotted name below its package; "" for the package's own __init__."""
    parts = path.relative_to(SOURCE.parent / of).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, module: str, is_package: bool, of: str = PACKAGE) -> Iterator[tuple[int, str]]:
    """Line and dotted name below a package of all that a file of that package imports from it."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = [of, *module.split(".")] if module else [of]
                up = node.level - 1 if is_package else node.level
                base = ".".join([*package[: len(package) - up], *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        for name in names:
            if name.split(".")[0] == of:
                yield getattr(node, "lineno", 0), name.removeprefix(of).removeprefix(".")


def permission(room: str, name: str) -> str | None:
    """The entry of the table by which a room may import a name, None without one."""
    module = ".".join(name.split(".")[:2])
    return next((entry for entry in MAY_IMPORT[room] if entry in (module, name.split(".")[0])), None)


def is_free(room: str, name: str) -> bool:
    """Whether an import needs no entry: of the room itself, of what all may import, or of a name like __version__."""
    target = name.split(".")[0]
    return target in (room, "", *EVERYBODY) or target not in MAY_IMPORT


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """The arrows of one file that are not in the table, as sentences."""
    room = module.split(".")[0]
    if room not in MAY_IMPORT:
        return [f"{module}: the room {room} is not in the table"]
    return [
        f"{module or PACKAGE}:{line} imports {name}, which {room or PACKAGE} may not"
        for line, name in imported(ast.parse(source), module, is_package)
        if not is_free(room, name) and permission(room, name) is None
    ]


@cache
def arrows(of: str = PACKAGE) -> list[tuple[str, str]]:
    """Each file's module, and the dotted names of its imports from its own package."""
    found = []
    for path in files(of):
        module = module_of(path, of)
        for _, name in imported(ast.parse(path.read_text(encoding="utf-8")), module, path.name == "__init__.py", of):
            found.append((module, name))
    return found


def circles(arrows: Iterable[tuple[str, str]], modules: Collection[str]) -> list[frozenset[str]]:
    """The modules that import each other, directly or by way of others; a name counts for the module that it is of."""
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, name in arrows:
        target = name if name in graph else name.rpartition(".")[0]
        if target in graph and target != module:
            graph[module].add(target)
    reached = {module: reachable(graph, module) for module in graph}
    return sorted(
        {frozenset(other for other in reached[module] if module in reached[other]) for module in graph} - {frozenset()},
        key=sorted,
    )


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """The modules that one gets to from another; itself only by a circle."""
    found: set[str] = set()
    todo = list(graph[start])
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += graph[module]
    return found


def test_imports_point_the_way_the_design_says() -> None:
    assert FILES
    assert [
        arrow
        for path in FILES
        for arrow in violations(
            path.read_text(encoding="utf-8"), module_of(path), is_package=path.name == "__init__.py"
        )
    ] == []


def test_the_schema_imports_nothing_of_the_controller_that_is_built_on_it() -> None:
    schema, controller = "pipelines.schema", "pipelines.controller"

    assert [(module, name) for module, name in arrows() if module.startswith(schema) and controller in name] == []


def test_every_permission_of_the_table_is_used() -> None:
    used = {(module.split(".")[0], permission(module.split(".")[0], name)) for module, name in arrows()}
    shared = {name.split(".")[0] for module, name in arrows() if module.split(".")[0] != name.split(".")[0]}

    assert [
        (room, entry) for room, entries in MAY_IMPORT.items() for entry in entries if (room, entry) not in used
    ] == []
    assert [module for module in EVERYBODY if module not in shared] == []


@pytest.mark.parametrize("package", [PACKAGE, "proving"])
def test_no_files_import_each_other(package: str) -> None:
    assert circles(arrows(package), [module_of(path, package) for path in files(package)]) == []


def test_a_circle_is_found_also_by_way_of_others() -> None:
    modules = ["a.one", "a.two", "b.three", "b.four"]
    round_about = [("a.one", "a.two.Name"), ("a.two", "b.three"), ("b.three", "a.one.Other"), ("b.four", "a.one")]

    assert circles(round_about, modules) == [frozenset({"a.one", "a.two", "b.three"})]
    assert circles(round_about[1:], modules) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("protocol.frames", "import wallaroo_spark.transport.tcp"),
        ("protocol.frames", "from wallaroo_spark.columnar import rows"),
        ("protocol.frames", "from wallaroo_spark import columnar"),
        ("protocol.frames", "from ..columnar import rows"),
        ("protocol.frames", "from .. import columnar"),
        ("registry.lease", "def late():\n    from wallaroo_spark.worker import state"),
        ("registry.lease", "import importlib\nimportlib.import_module('wallaroo_spark.worker.state')"),
        ("connector.client", "from wallaroo_spark.worker import state"),
        ("worker.state", "from wallaroo_spark.connector import Connector"),
        ("worker.run", "from wallaroo_spark.registry import slots"),
        ("source.reader", "from wallaroo_spark.worker.state import WorkerState"),
        ("source.reader", "from wallaroo_spark.worker.flight_server import InnerPort"),
        ("receiver", "from wallaroo_spark.cli import main"),
        ("newroom.thing", "import os"),
    ],
)
def test_an_arrow_that_points_the_wrong_way_is_found(module: str, line: str) -> None:
    assert len(violations(line, module)) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("protocol.frames", "from .framing import split"),
        ("protocol.frames", "from wallaroo_spark.errors import ProtocolError"),
        ("protocol.frames", "from wallaroo_spark import errors, options"),
        ("columnar.rows", "from wallaroo_spark.protocol.frames import Message"),
        ("columnar.rows", "from wallaroo_spark import protocol"),
        ("source.reader", "from wallaroo_spark.inner.client import WorkerClient"),
        ("cli.demo", "from wallaroo_spark import Receiver, receiver"),
        ("cli.demo", "from .table import show"),
        ("connector.client", "import redis, asyncio"),
    ],
)
def test_an_arrow_of_the_table_is_allowed(module: str, line: str) -> None:
    assert violations(line, module) == []


def test_a_package_resolves_one_dot_to_itself() -> None:
    assert violations("from .frames import Message", "protocol", is_package=True) == []
    assert len(violations("from ..columnar import rows", "protocol", is_package=True)) == 1


WITHOUT_HEAVY = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"{name} is not installed here")

HEAVY = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Refuse())
for name in sys.argv[2:]:
    importlib.import_module(name)
assert not HEAVY & {name.split(".")[0] for name in sys.modules}
"""


def test_the_light_rooms_import_without_spark_and_numbers() -> None:
    light = [path for path in FILES if path.relative_to(SOURCE).parts[0] in LIGHT_ROOMS and path.name != "__main__.py"]
    modules = [PACKAGE, *(f"{PACKAGE}.{module_of(path)}" for path in light)]
    assert light

    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEAVY, ",".join(HEAVY_PACKAGES), *modules],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )

    assert finished.returncode == 0, finished.stderr


def undocumented(tree: ast.Module) -> Iterator[str]:
    """The module, public classes, and public functions and methods outside functions that lack a docstring."""
    if tree.body and not ast.get_docstring(tree):
        yield "the module"
    nodes: list[ast.AST] = [tree]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.If | ast.Try):
                nodes.append(node)
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_") or repeats_another(node):
                continue
            if not ast.get_docstring(node):
                yield f"{node.name} (line {node.lineno})"
            if isinstance(node, ast.ClassDef):
                nodes.append(node)


def repeats_another(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator says that the docstring stands elsewhere: overloads, setters and overrides."""
    decorators = [ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list]
    return any(name.split(".")[-1] in ("overload", "setter", "deleter", "override") for name in decorators)


def test_every_public_name_has_a_docstring() -> None:
    assert [
        f"{relative(path)}: {name}"
        for path in FILES
        for name in undocumented(ast.parse(path.read_text(encoding="utf-8")))
    ] == []


def test_a_missing_docstring_is_found() -> None:
    source = '"""Module."""\nclass Shown:\n    """Doc."""\n    def bare(self): pass\n    def _own(self): pass\n'

    assert list(undocumented(ast.parse(source))) == ["bare (line 4)"]
    assert list(undocumented(ast.parse("x = 1\n"))) == ["the module"]


SILENCED = re.compile(r"# (?:type: ignore|noqa|pragma: no cover)")
EXPLAINED = re.compile(
    r"# (?:type: ignore\[[\w, -]+\]|noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*|pragma: no cover)(?:  # | --? )\w"
)
"""A check is silenced for what it says there and for nothing else, and the reason follows in the same line."""


def unexplained(text: str) -> list[int]:
    """The numbers of the lines that silence a check and do not say why."""
    lines = enumerate(text.splitlines(), start=1)
    return [number for number, line in lines if SILENCED.search(line) and not EXPLAINED.search(line)]


def test_a_silenced_line_says_why() -> None:
    root = Path(__file__).resolve().parents[1]
    folders = ("wallaroo_spark", "tests", "proving", "examples")
    files = (path for folder in folders for path in (root / folder).rglob("*.py"))
    found = {str(path.relative_to(root)): unexplained(path.read_text(encoding="utf-8")) for path in sorted(files)}
    del found[str(Path(__file__).resolve().relative_to(root))]
    found = {path: lines for path, lines in found.items() if lines}
    assert not found, f"lines that silence a check without '  # reason' behind it: {found}"


def test_a_line_that_is_silenced_without_a_reason_is_found() -> None:
    assert unexplained("a = b  # type: ignore[misc]\n") == [1]
    assert unexplained("a = b  # type: ignore  # for everything\n") == [1]
    assert unexplained("\na = b  # noqa\n") == [2]
    assert unexplained("a = b  # type: ignore[misc]  # a reason\nb = c  # noqa: E501 -- a reason\n") == []
