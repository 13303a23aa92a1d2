"""The group: verbs are found, errors are sentences, and nothing is loaded that is not needed."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import wallaroo_spark
from tests.cli.conftest import Run
from tests.waiting import SECONDS
from wallaroo_spark.cli import main as program
from wallaroo_spark.cli.common import debug_option
from wallaroo_spark.errors import RegistryError

HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "redis")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the verb ``status`` with a body that raises the test's error."""

    def invoke(error: BaseException, *arguments: str, env: dict[str, str] | None = None) -> Result:
        @click.command()
        @debug_option
        def status() -> None:
            raise error

        monkeypatch.setattr("wallaroo_spark.cli.status.status", status)
        return CliRunner().invoke(program.cli, [*arguments, "status"], env=env)

    return invoke


def test_the_version_is_the_packages(run: Run) -> None:
    shown = run("--version")

    assert (shown.returncode, shown.stdout) == (0, f"wallaroo-spark, version {wallaroo_spark.__version__}\n")


def test_the_help_lists_the_verbs_by_subject_with_their_own_lines() -> None:
    shown = CliRunner().invoke(program.cli, ["--help"])

    assert shown.exit_code == 0
    headings = [f"{group}:" for group in program.GROUPS]
    assert [line for line in shown.output.splitlines() if line in headings] == headings
    listed = re.findall(r"^  (\w+) +(\S.*)$", shown.output.split(f"\n{headings[0]}\n")[1], flags=re.MULTILINE)
    assert [verb for verb, _ in listed] == [verb for verbs in program.GROUPS.values() for verb in verbs]


def verbs(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """All verbs below a command, with their full names."""
    if not isinstance(command, click.Group):
        yield context.command_path, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from verbs(inner, click.Context(inner, info_name=name, parent=context))


def test_every_verb_has_examples_and_json() -> None:
    group = click.Context(program.cli, info_name="wallaroo-spark")
    found = dict(verbs(program.cli, group))

    assert len(found) > 20
    assert [name for name, verb in found.items() if "Example" not in (verb.epilog or "")] == []
    flags = {name: {flag for option in verb.params for flag in option.opts} for name, verb in found.items()}
    assert [name for name, has in flags.items() if "--json" not in has] == []


@pytest.mark.parametrize("verb", ["receive", "send", "sink", "status"])
def test_a_verbs_line_in_the_list_is_the_one_it_has_itself(verb: str) -> None:
    command = program.cli.get_command(click.Context(program.cli), verb)

    assert command is not None
    assert command.short_help == program.VERBS[verb]["line"]


@pytest.mark.parametrize("arguments", [["sned"], ["send"], ["--nonsense"], ["status"], ["send", "/nonexistent"]])
def test_a_command_line_that_cannot_be_parsed_ends_with_status_2(arguments: list[str]) -> None:
    shown = CliRunner().invoke(program.cli, arguments)

    assert shown.exit_code == 2
    assert "Error: " in shown.output


def test_an_error_of_the_package_is_one_sentence(failing: Callable[..., Result]) -> None:
    shown = failing(RegistryError("Redis is away; start it"))

    assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "", "Error: Redis is away; start it\n")


@pytest.mark.parametrize(("arguments", "env"), [(["--debug"], {}), ([], {"WALLAROO_DEBUG": "1"})])
def test_a_traceback_is_shown_when_debugging(
    failing: Callable[..., Result], arguments: list[str], env: dict[str, str]
) -> None:
    shown = failing(RegistryError("Redis is away; start it"), *arguments, env=env)

    assert shown.exit_code == 1
    assert "Traceback (most recent call last)" in shown.stderr
    assert shown.stderr.endswith("Error: Redis is away; start it\n")


def test_an_unexpected_error_is_called_a_defect(failing: Callable[..., Result]) -> None:
    shown = failing(KeyError("slot"))

    assert shown.exit_code == 1
    assert "Traceback" not in shown.stderr
    assert shown.stderr == (
        "Error: this is a defect of wallaroo-spark (KeyError: 'slot'); "
        "run it again with --debug to get the traceback, and report that\n"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "demo-output"),
            "demo-output cannot be used: Permission",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "a file cannot be used: No space left on device"),
    ],
)
def test_a_folder_that_cannot_be_written_is_no_defect(
    failing: Callable[..., Result], error: OSError, said: str
) -> None:
    shown = failing(error)

    assert shown.exit_code == 1
    assert shown.stderr.startswith(f"Error: {said}")
    assert shown.stderr.endswith("or work in another folder [file-unwritable]\n")


def test_a_package_that_is_not_installed_is_named_with_its_extra(failing: Callable[..., Result]) -> None:
    shown = failing(ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.flight"))

    assert shown.exit_code == 1
    assert shown.stderr == (
        "Error: wallaroo-spark status needs pyarrow, which is not installed; "
        "run: pip install 'wallaroo-spark[worker,cli]' [package-missing]\n"
    )


def test_an_interrupt_ends_with_status_130(failing: Callable[..., Result]) -> None:
    shown = failing(KeyboardInterrupt())

    assert (shown.exit_code, shown.stderr) == (130, "Interrupted.\n")


def test_an_interrupt_while_the_program_is_loaded_ends_it_in_one_line() -> None:
    code = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "wallaroo_spark.cli.common":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from wallaroo_spark.cli.entry import main
main()
"""
    command = [sys.executable, "-c", code, "status"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")
    assert project["project"]["scripts"]["wallaroo-spark"] == "wallaroo_spark.cli.entry:main"


def loaded(*arguments: str) -> set[str]:
    """The modules that are loaded at the end of a run of the program."""
    code = f"""
import atexit, sys
from wallaroo_spark.cli.main import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main({list(arguments)!r})
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS)
    return set(finished.stderr.split())


def test_the_help_of_send_needs_neither_spark_nor_arrow_nor_redis() -> None:
    assert not loaded("send", "--help") & set(HEAVY)


def test_the_list_of_verbs_loads_none_of_them() -> None:
    modules = loaded("--help")

    assert "wallaroo_spark.cli.main" in modules
    verbs = tuple(f"{program.ROOM}.{row['module']}" for row in program.VERBS.values())
    assert not {name for name in modules if name.startswith(verbs)}


REFUSING = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
from wallaroo_spark.cli.main import main
main({arguments!r})
"""


def without(refused: tuple[str, ...], *arguments: Any) -> subprocess.CompletedProcess[str]:
    code = REFUSING.format(refused=refused, arguments=[str(argument) for argument in arguments])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=SECONDS)


def test_send_runs_where_there_is_no_spark(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n")

    ended = without(HEAVY, "send", file, "--workers", "127.0.0.1:1", "--give-up-after", "0.01")

    assert ended.returncode == 1
    assert "Error: no session with a worker" in ended.stderr


def test_without_click_the_way_out_is_named() -> None:
    ended = without(("click",), "--help")

    assert ended.returncode == 1
    assert ended.stderr == "Error: the command line needs click; run: pip install 'wallaroo-spark[cli]'\n"


def test_receive_without_spark_names_the_extra(tmp_path: Path) -> None:
    file = tmp_path / "receive.yaml"
    file.write_text("{receiver: a, checkpoint: c, sink: {format: noop}}", encoding="utf-8")

    ended = without(("pyspark",), "receive", file)

    assert ended.returncode == 1
    assert ended.stderr.endswith(
        "receive needs pyspark, which is not installed; run: pip install 'wallaroo-spark[spark]' [package-missing]\n"
    )
