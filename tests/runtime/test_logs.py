"""The log of a process on an executor: one line each, with time, level and slot, and without secrets."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from wallaroo_spark.runtime.python_tasks import HIDDEN, LineFormatter, LogSettings, least_level, secrets_of

PROGRAM = """
import logging, sys
from wallaroo_spark.runtime.python_tasks import LogSettings, log_to_stderr
log_to_stderr(LogSettings("orders", "warning", "text"), 1)
log_to_stderr(LogSettings("orders", sys.argv[1], sys.argv[2], ("hush-hush",)), 3)
log = logging.getLogger("wallaroo_spark.worker")
log.debug("a detail")
log.info("shop-1 says HELLO")
try:
    raise ValueError("the cookie is hush-hush")
except ValueError:
    log.exception("slot %d: it failed with hush-hush", 3)
logging.getLogger("another").info("not ours")
"""


def said(level: str, form: str) -> list[str]:
    """The lines that a process of its own writes to standard error."""
    command = [sys.executable, "-c", PROGRAM, level, form]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr.splitlines()


def record(message: str = "slot 0 listens") -> logging.LogRecord:
    made = logging.LogRecord("wallaroo_spark.worker", logging.INFO, "", 0, message, (), None)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def test_a_line_of_text_has_time_level_receiver_and_slot() -> None:
    line = LineFormatter(LogSettings("orders"), 2).format(record())

    assert line == "2023-11-14T22:13:20.250Z INFO orders/2 wallaroo_spark.worker: slot 0 listens"


def test_a_line_of_a_gateway_has_its_application_and_its_name() -> None:
    settings = LogSettings("shop", names=("application", "gateway"), format="json")

    assert " INFO shop/g1 wallaroo_spark.worker: " in LineFormatter(LogSettings("shop"), "g1").format(record())
    found = json.loads(LineFormatter(settings, "g1").format(record()))
    assert (found["application"], found["gateway"]) == ("shop", "g1")
    assert found.keys() == {"time", "level", "application", "gateway", "logger", "message"}


def test_a_line_of_a_reading_task_has_no_slot() -> None:
    assert " INFO orders wallaroo_spark.worker: " in LineFormatter(LogSettings("orders"), None).format(record())


def test_a_process_writes_each_line_once_at_the_level_of_its_last_task() -> None:
    lines = said("info", "text")

    assert [line.split(" ", 1)[1] for line in lines if line.startswith("20")] == [
        "INFO orders/3 wallaroo_spark.worker: shop-1 says HELLO",
        f"ERROR orders/3 wallaroo_spark.worker: slot 3: it failed with {HIDDEN}",
    ]
    assert lines[-1] == f"ValueError: the cookie is {HIDDEN}"


def test_json_is_one_object_a_line_with_the_traceback_in_it() -> None:
    found: list[dict[str, Any]] = [json.loads(line) for line in said("debug", "json")]

    assert [(line["level"], line["slot"], line["message"]) for line in found] == [
        ("debug", 3, "a detail"),
        ("info", 3, "shop-1 says HELLO"),
        ("error", 3, f"slot 3: it failed with {HIDDEN}"),
    ]
    assert found[-1]["error"].splitlines()[-1] == f"ValueError: the cookie is {HIDDEN}"
    assert "error" not in found[0]


@pytest.mark.parametrize(
    ("registry", "others", "hidden"),
    [
        ("redis://:pass-word@host:1/0", ("a cookie", "a token of the fleet"), {"pass-word", "a cookie"}),
        ("redis://host:1", ("", "abc"), set()),
        ("redis://[broken", (), {"redis://[broken"}),
    ],
)
def test_passwords_cookies_and_tokens_are_hidden_and_short_words_are_not(
    registry: str, others: tuple[str, ...], hidden: set[str]
) -> None:
    found = set(secrets_of(registry, *others))

    assert hidden <= found
    assert "abc" not in found


@pytest.mark.parametrize(
    ("level", "master", "least"),
    [
        ("auto", "local", "warning"),
        ("auto", "local[*]", "warning"),
        ("auto", "local[4,2]", "warning"),
        ("auto", "local-cluster[2,1,1024]", "info"),
        ("auto", "spark://127.0.0.1:7077", "info"),
        ("auto", "yarn", "info"),
        ("auto", "", "info"),
        ("debug", "local[*]", "debug"),
        ("info", "local[*]", "info"),
        ("error", "yarn", "error"),
    ],
)
def test_a_terminal_gets_warnings_alone_unless_told_otherwise(level: str, master: str, least: str) -> None:
    assert least_level(level, master) == least


def test_settings_do_not_show_their_secrets() -> None:
    assert "hush" not in repr(LogSettings("orders", secrets=("hush-hush",)))
