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
from tests.pages.reading import blocks_of, pages
from tests.waiting import SECONDS
from wallaroo_spark.cli.main import cli

COMMAND = re.compile(r"(?:^|(?<=\s))(?:\./scripts/\w+|wallaroo-spark|spark-submit|pip install)(?= |$)")
WRITTEN_OUT = ("shell", "console", "sh", "bash")
"""Languages of blocks whose lines are commands."""
FLAG = re.compile(r"(?<!\S)--?[a-z][\w-]*")
MODULES = {
    "simulate": "proving.simulator",
    "chaos": "proving.chaos",
    "soak": "proving.chaos.soak",
    "bench": "proving.bench",
    "shop": "proving.shop",
    "report": "proving.report",
}
"""Scripts whose flags a module of Python reads."""


def commands() -> Iterator[tuple[str, str]]:
    """Where a page has a command, and the command: in blocks, in indented lines, and as code within a sentence."""
    for page in pages():
        name = str(page.relative_to(ROOT))
        text = re.sub(r"^```\w* *\w*\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        # A sentence may name an option without its value.
        inline = [
            re.sub(r"( -(?!-help)[\w-]+)$", r"\1 …", code.replace("\n", " ")) for code in re.findall(r"`([^`]+)`", text)
        ]
        for line in [*shown_lines(page), *inline]:
            for part in re.split(r" (?:&&|\||&)(?: |$)", line):
                if COMMAND.match(part.strip()):
                    yield name, part.strip()


def shown_lines(page: Path) -> list[str]:
    """The lines that a page shows to be typed: those of blocks and those that are indented, without their comments."""
    text = page.read_text(encoding="utf-8")
    outside = re.sub(r"^```\w* *\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = [block.text.replace("\\\n", " ") for block in blocks_of(page) if block.language in WRITTEN_OUT]
    if page.name == "cli.md":  # Made from the help of the commands, with its examples.
        blocks += re.findall(r"^ +(wallaroo-spark .*)$", text, re.MULTILINE)
    lines = [*re.findall(r"^    (\S.*)$", outside, re.MULTILINE), *"\n".join(blocks).splitlines()]
    return [line.removeprefix("$ ").split("   ")[0].split(" # ")[0].strip() for line in lines]


def words(command: str) -> list[str]:
    return shlex.split(command.replace("…", "X").replace("[", "").replace("]", ""))


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
        _, rest, _ = cli.make_parser(click.Context(cli)).parse_args(rest)
        return wrong_with_verb(rest[0], rest[1:]) if rest else ""
    if program == "spark-submit":
        # A word that a shell replaces is no file.
        files = [word for word in rest if "/" in word and ":" not in word and not word.startswith("$(")]
        missing = [word for word in files if not (ROOT / word).exists()]
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
    context = click.Context(command, info_name=verb, parent=group)
    try:
        command.make_parser(context).parse_args([word for word in arguments if word not in ("-h", "--help")])
    except click.UsageError as error:
        return f"{verb}: {error.format_message()}"
    return ""


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
        ("wallaroo-spark send FILE --wrokers a:1", "send: No such option '--wrokers'. Did you mean '--workers'?"),
        ("wallaroo-spark send FILE --workers", "send: Option '--workers' requires an argument."),
        ("wallaroo-spark token revoke ID --nmae a", "token revoke: No such option '--nmae'."),
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
