"""The commands that pages name are there, with the flags that pages give them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from tests.conftest import ROOT
from tests.pages.reading import pages
from tests.waiting import SECONDS
from wallaroo_spark.cli.main import cli

COMMAND = re.compile(r"(?:^|(?<=\s))(?:\./scripts/\w+|wallaroo-spark|spark-submit|pip install)(?= |$)")
FLAG = re.compile(r"(?<!\S)--?[a-z][\w-]*")
MODULES = {
    "simulate": "proving.simulator",
    "chaos": "proving.chaos",
    "soak": "proving.chaos.soak",
    "bench": "proving.bench",
    "shop": "proving.shop",
}
"""Scripts whose flags a module of Python reads."""


def commands() -> Iterator[tuple[str, str]]:
    """Where a page has a command, and the command: lines that are indented by four, and code within a sentence."""
    for page in pages():
        name = str(page.relative_to(ROOT))
        if name == "docs/cli.md":
            continue  # Generated from the commands themselves.
        text = re.sub(r"^```\w* *\w*\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        shown = [line.split("   ")[0].split(" # ")[0] for line in re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)]
        inline = [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", text)]
        for line in [*shown, *inline]:
            for part in re.split(r" (?:&&|\|) ", line):
                if COMMAND.match(part.strip()):
                    yield name, part.strip()


def words(command: str) -> list[str]:
    return shlex.split(command.replace("…", "").replace("[", "").replace("]", ""))


def flags_of(command: str) -> set[str]:
    return set(FLAG.findall(command))


@cache
def help_of(script: str) -> str:
    """The help of a script."""
    if script in MODULES:
        program = [sys.executable, "-m", MODULES[script], "--help"]
    elif script == "cluster":
        program = [sys.executable, str(ROOT / "scripts" / "cluster.py"), "start", "--help"]
    else:
        return (ROOT / "scripts" / script).read_text(encoding="utf-8")
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wrong_with(command: str) -> str:
    """The mistake in a command; empty when there is none."""
    program, *rest = words(command)
    if program.startswith("./scripts/"):
        script = program.removeprefix("./scripts/")
        if not (ROOT / "scripts" / script).exists():
            return "no such script"
        if script == "demo":
            return wrong_with_verb("demo", rest)
        unknown = {flag for flag in flags_of(command) if flag not in help_of(script) and len(flag) > 2}
        return f"{script} knows no {unknown}" if unknown and script != "test" else ""
    if program == "wallaroo-spark":
        return wrong_with_verb(rest[0], rest[1:]) if rest and not rest[0].startswith("-") else ""
    if program == "spark-submit":
        missing = [word for word in rest if "/" in word and ":" not in word and not (ROOT / word).exists()]
        return f"no such file: {missing}" if missing else ""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = re.search(r"wallaroo-spark\[([\w,]+)\]", command)
    unknown = set(named[1].split(",")) - extras.keys() if named else set()
    return f"no such extra: {unknown}" if unknown else ""


def wrong_with_verb(verb: str, arguments: list[str]) -> str:
    group = click.Context(cli, info_name="wallaroo-spark")
    command = cli.get_command(group, verb)
    if command is None:
        return f"no such verb: {verb}"
    if isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        verb, command, arguments = f"{verb} {arguments[0]}", command.commands[arguments[0]], arguments[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = {argument.split("=")[0] for argument in arguments if re.match(r"--?[a-z]", argument)}
    return f"{verb} knows no {given - known}" if given - known - {"-h", "--help"} else ""


def test_pages_name_commands_that_are_there() -> None:
    found = list(commands())

    assert len(found) > 30
    assert [f"{page}: {command}: {wrong}" for page, command in found if (wrong := wrong_with(command))] == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("./scripts/nothing", "no such script"),
        ("./scripts/chaos --minuets 5", "chaos knows no {'--minuets'}"),
        ("wallaroo-spark sent FILE", "no such verb: sent"),
        ("wallaroo-spark send FILE --wrokers a:1", "send knows no {'--wrokers'}"),
        ("wallaroo-spark token revoke ID --nmae a", "token revoke knows no {'--nmae'}"),
        ("spark-submit jobs/nothing.py", "no such file: ['jobs/nothing.py']"),
        ("pip install 'wallaroo-spark[everything]'", "no such extra: {'everything'}"),
    ],
)
def test_a_command_that_is_not_there_is_found(command: str, wrong: str) -> None:
    assert wrong_with(command) == wrong


def test_scripts_can_be_run() -> None:
    scripts = {Path(words(command)[0]).name for _, command in commands() if command.startswith("./scripts/")}

    assert scripts >= {"demo", "test", "chaos", "simulate", "bench"}
    assert [name for name in sorted(scripts) if not os.access(ROOT / "scripts" / name, os.X_OK)] == []
