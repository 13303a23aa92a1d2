"""The extras: as in pyproject.toml, and named by errors so that one command installs what is missing."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT
from tests.waiting import SECONDS
from wallaroo_spark import extras as missing_module
from wallaroo_spark.cli.main import VERBS, needs_of
from wallaroo_spark.errors import ConfigurationError, PackageMissingError
from wallaroo_spark.extras import EXTRAS, lacking, missing, modules_of
from wallaroo_spark.registry import EmbeddedRedis

DISTRIBUTIONS = {
    "confluent_kafka": "confluent-kafka",
    "google.protobuf": "protobuf",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "hdfs_native": "hdfs-native",
    "nats": "nats-py",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.proto": "opentelemetry-proto",
    "prometheus_client": "prometheus-client",
    "yaml": "pyyaml",
}
"""Module → the package that has it, where the names differ."""
SETS = ("all", "test")


def declared() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[str]] = project["optional-dependencies"]
    return found


def packages_of(name: str) -> Iterator[str]:
    """The packages that an extra installs by pyproject.toml, those of included extras too."""
    for requirement in declared()[name]:
        own = re.match(r"wallaroo-spark\[(.+)\]", requirement)
        if own is None:
            yield re.split(r"[\[<>=]", requirement, maxsplit=1)[0]
        else:
            for other in own[1].split(","):
                yield from packages_of(other)


def test_the_table_is_that_of_pyproject() -> None:
    assert EXTRAS.keys() == declared().keys() - set(SETS)
    for extra in EXTRAS:
        installed = {DISTRIBUTIONS.get(module, module) for module in modules_of(extra)}
        assert installed == set(packages_of(extra)), extra


def test_every_extra_that_a_text_names_exists() -> None:
    named = set()
    for folder in ("wallaroo_spark", "docs", "conf", "examples"):
        for path in [*ROOT.glob("*.md"), *(ROOT / folder).rglob("*.*")]:
            if path.suffix in (".py", ".md", ".conf", ".yaml", ".toml"):
                text = path.read_text(encoding="utf-8")
                named |= {
                    name for found in re.findall(r"wallaroo-spark\[([a-z,-]+)\]", text) for name in found.split(",")
                }

    assert named <= declared().keys()


def test_every_extra_that_a_verb_needs_exists() -> None:
    needed = {extra for verb in VERBS for extras in needs_of(verb) for extra in extras}

    assert needed
    assert needed <= EXTRAS.keys()


def extras_in(tree: ast.AST) -> Iterator[str]:
    """The extras that the code of errors names.

    They are words of ``command([…])`` and of ``needed_by("…", …)``, and what is called ``extra``.
    """
    for node in ast.walk(tree):
        words = list[ast.expr | None]()
        match node:
            case ast.Call(func=ast.Name("command"), args=[*words]):
                pass
            case ast.Call(func=ast.Name("needed_by"), args=[_, *words]):
                pass
            case ast.keyword(arg="extra", value=word) | ast.AnnAssign(target=ast.Name("extra"), value=word):
                words = [word]
            case ast.Assign(targets=[ast.Name("extra")], value=word):
                words = [word]
        for word in filter(None, words):
            yield from (one.value for one in ast.walk(word) if isinstance(one, ast.Constant) and one.value)


def test_every_extra_that_the_code_of_an_error_names_exists() -> None:
    named = set()
    for path in (ROOT / "wallaroo_spark").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named |= set(extras_in(ast.parse(text)))
        if "\n_NEEDS = " in text:
            module = importlib.import_module(".".join(path.relative_to(ROOT).parent.parts))
            named |= {extra for extras in module._NEEDS.values() for extra in extras}

    assert named >= {"embedded", "hdfs", "mqtt", "otlp", "postgres", "quic", "worker"}
    assert named <= EXTRAS.keys()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules that are installed; the test adds some."""
    found: set[str] = set()
    monkeypatch.setattr(missing_module, "installed", found.__contains__)
    monkeypatch.setattr("shutil.which", lambda name: None)
    return found


@pytest.mark.parametrize(
    ("there", "wanted", "named"),
    [
        ((), ("registry",), ("registry",)),
        ((), ("spark", "pipelines", "embedded", "cli"), ("spark", "pipelines", "embedded", "cli")),
        (("click", "rich", "yaml", "redis"), ("spark", "pipelines"), ("spark", "pipelines")),
        (("pyspark",), ("spark", "pipelines"), ("pipelines",)),
        (("pyspark", "redis", "grpc"), ("spark",), ("worker",)),
        (("redis",), ("pipelines",), ("pipelines",)),
        (("redis", "cryptography", "numpy", "pandas", "pyarrow"), ("pipelines",), ("pipelines",)),
        (("redis", "cryptography", "numpy", "pandas", "pyarrow", "msgpack"), ("pipelines",), ("client",)),
    ],
)
def test_one_command_installs_everything_that_is_missing(
    installed: set[str], there: tuple[str, ...], wanted: tuple[str, ...], named: tuple[str, ...]
) -> None:
    installed.update(there)

    assert lacking(wanted) == named
    for extra in named:
        installed.update(modules_of(extra))
    assert lacking(wanted) == ()


def test_a_program_of_the_system_is_as_good_as_the_extra(installed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/redis-server")

    assert lacking(("embedded", "registry")) == ("registry",)


@pytest.mark.parametrize(
    ("verb", "name", "said"),
    [
        ("run", "pyarrow", "wallaroo-spark[spark,pipelines,embedded,cli]"),
        ("status", "redis", "wallaroo-spark[worker,cli]"),
        ("status", "pyarrow.parquet", "wallaroo-spark[worker,cli]"),
        ("status", "msgpack", "wallaroo-spark[pipelines,cli]"),
        ("demo", "numpy", "wallaroo-spark[spark,embedded,cli]"),
        ("consume", "google", "wallaroo-spark[client,cli]"),
        ("tap", "pyarrow", "wallaroo-spark[worker]"),
    ],
)
def test_a_verb_names_what_it_needs_for_what_it_was_asked(installed: set[str], verb: str, name: str, said: str) -> None:
    found = missing(ModuleNotFoundError(f"No module named {name!r}", name=name), verb, *needs_of(verb))

    assert found is not None
    assert said in str(found)


def test_a_module_of_somebody_else_is_not_explained() -> None:
    assert missing(ModuleNotFoundError("No module named 'shop'", name="shop"), "run", ("spark",)) is None


REFUSED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
try:
    exec(sys.argv[2])
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("packages", "line", "said"),
    [
        ("pyspark", "from wallaroo_spark import Receiver", "wallaroo_spark.Receiver needs pyspark"),
        ("pyspark", "from wallaroo_spark import Application", "wallaroo_spark.Application needs pyspark"),
        ("grpc", "from wallaroo_spark.client import Client", "run: pip install 'wallaroo-spark[client]' [package"),
        ("grpc", "from wallaroo_spark.testing import run_function", "pip install 'wallaroo-spark[client]' [package"),
        ("msgpack,grpc", "from wallaroo_spark.testing import run_function", "'wallaroo-spark[pipelines]' [package"),
        ("pyarrow", "from wallaroo_spark.pubsub import subscribe", "pip install 'wallaroo-spark[pubsub]' [package"),
    ],
)
def test_an_import_without_the_extra_is_one_sentence(packages: str, line: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", REFUSED, packages, line], capture_output=True, text=True, timeout=SECONDS, check=False
    )

    assert ended.stdout.startswith("PackageMissingError "), ended.stdout + ended.stderr
    assert said in ended.stdout
    assert issubclass(PackageMissingError, ConfigurationError)


HELP = REFUSED.replace(
    "exec(sys.argv[2])",
    """
from click.testing import CliRunner
from wallaroo_spark.cli.main import VERBS, cli
for verb in VERBS:
    ended = CliRunner().invoke(cli, [verb, "--help"])
    print(verb, ended.exit_code, ended.output if ended.exit_code else "")
""".replace("\n", "\n    "),
)


def test_help_needs_only_the_extra_of_the_command_line() -> None:
    refused = ",".join({module.split(".")[0] for module in modules_of("spark") | modules_of("pipelines")})
    ended = subprocess.run(
        [sys.executable, "-c", HELP, refused], capture_output=True, text=True, timeout=SECONDS, check=False
    )

    assert ended.stdout.splitlines() == [f"{verb} 0 " for verb in VERBS], ended.stderr


WATCHING = REFUSED.replace(
    "exec(sys.argv[2])",
    """
from click.testing import CliRunner
from wallaroo_spark.cli.main import cli
for verb in ("status", "top", "streams", "list"):
    of_one = () if verb == "list" else ("--receiver", "orders")
    ended = CliRunner().invoke(cli, [verb, "--registry", sys.argv[2], *of_one, *(["--once"] if verb == "top" else [])])
    print(verb, ended.output.replace(chr(10), " "))
""".replace("\n", "\n    "),
)


def test_a_receiver_is_watched_with_the_extras_that_the_page_names() -> None:
    """docs/cli.md: ``status``, ``streams``, ``top`` and ``list`` need ``[worker,cli]``."""
    others = {module for extra in EXTRAS for module in modules_of(extra)} - modules_of("worker") - modules_of("cli")
    refused = ",".join({module.split(".")[0] for module in others})
    with EmbeddedRedis() as store:
        ended = subprocess.run(
            [sys.executable, "-c", WATCHING, refused, store.url],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    assert "package-missing" not in ended.stdout
    verbs = [line.split()[0] for line in ended.stdout.splitlines()]
    assert verbs == ["status", "top", "streams", "list"], ended.stdout + ended.stderr
    assert "No receiver" in ended.stdout.splitlines()[-1]
