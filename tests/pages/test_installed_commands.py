"""Every command that pages print works with the installed wheel, in a folder that has nothing of this tree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pages.reading import pages
from tests.pages.test_commands import shown_lines
from tests.pages.wheel import environment, installed
from tests.waiting import SECONDS

MOMENT = 20.0
"""Seconds after which a command that goes on is interrupted: it serves, follows, or waits for somebody."""
NOT_AS_IT_STANDS = re.compile(r"…|\b(?!COOKIE\b|DSN\b|DATABASE_PASSWORD\b)[A-Z_]{3,}\b|pip install|scripts/")
"""A word in capitals stands for something of the reader's own, except names of variables."""
OWN_FAULT = re.compile(r"this is a defect of wallaroo-spark|ModuleNotFoundError")
FAULTS = re.compile(rf"Traceback \(most recent call last\)|{OWN_FAULT.pattern}")
NOT_THERE = re.compile(r"does not exist|No such file|there is no (?:program|file)")
CONTEXT = {
    "WALLAROO_REGISTRY": "redis://127.0.0.1:6379",
    "WALLAROO_RECEIVER": "orders",
    "WALLAROO_GATEWAY": "127.0.0.1:7300",
    "WALLAROO_COOKIE": "secret",
    "COOKIE": "secret",
    "DATABASE_PASSWORD": "secret",
    "DSN": "postgresql://127.0.0.1:1/orders",
}
"""What a reader's environment or profile has."""
REPOSITORY = "git init && git -c user.name=a -c user.email=a@example.org commit --allow-empty --message first"
PROFILE = 'context = "test"\n[contexts.test]\nreceiver = "orders"\n'


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel."""
    return installed(tmp_path_factory.mktemp("installed"))


def printed() -> Iterator[str]:
    """The commands of all pages that can be typed as they stand, each once."""
    found = dict[str, None]()
    for page in pages():
        for line in shown_lines(page):
            if "wallaroo-spark " in line and not re.search(
                r"…|\b[A-Z]{3,}\b(?!=)(?<!COOKIE)(?<!DSN)|pip install|scripts/", line
            ):
                found[line] = None
    yield from found


def wrong_with(line: str, folder: Path, programs: Path) -> str:
    """What a command does that no command should do; empty when there is nothing."""
    variables = environment(programs) | CONTEXT | {"WALLAROO_CONFIG": str(folder / "config.toml")}
    started = subprocess.Popen(
        ["bash", "-c", f"exec {line}" if line.startswith("wallaroo-spark") and "|" not in line else line],
        cwd=folder, env=variables, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, err = started.communicate(timeout=MOMENT)
    except subprocess.TimeoutExpired:
        # As a terminal does it: each program of a pipeline is interrupted, not bash alone, which waits for them.
        os.killpg(started.pid, signal.SIGINT)
        try:
            out, err = started.communicate(timeout=SECONDS / 2)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate(timeout=SECONDS)
            return "it does not end when it is interrupted"
        # What libraries print of an interrupt is no fault of the command.
        return err[-2000:] if OWN_FAULT.search(out + err) else ""
    if FAULTS.search(out + err):
        return err[-2000:]
    if started.returncode == 2 and not NOT_THERE.search(err):
        return err[-2000:]
    return ""


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_every_printed_command_works_or_says_in_a_sentence_what_is_missing(programs: Path, tmp_path: Path) -> None:
    """Not a traceback, and no usage error but for a file of the reader's own that is not there."""
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.toml").write_text(PROFILE, encoding="utf-8")
    subprocess.run(["bash", "-c", REPOSITORY], cwd=folder, check=True, capture_output=True, timeout=SECONDS)
    assert wrong_with("wallaroo-spark files examples --to .", folder, programs) == ""
    lines = list(printed())
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(lines, pool.map(lambda line: wrong_with(line, folder, programs), lines), strict=True))

    assert len(lines) > 50
    assert {line: wrong for line, wrong in found.items() if wrong} == {}
