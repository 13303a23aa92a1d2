"""The table of codes: each entry is whole, leads to a page, and no name has two meanings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_documents import anchors
from wallaroo_spark.codes import ENTRIES, GROUPS, CodeEntry, search

CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
ALERTS = ROOT / "conf" / "prometheus" / "wallaroo-alerts.yaml"


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.code)
def test_an_entry_is_whole(entry: CodeEntry) -> None:
    assert CODE.fullmatch(entry.code)
    assert all(text.endswith(".") for text in (entry.title, entry.cause, entry.cure) if text)
    assert entry.title
    assert entry.cause
    assert entry.cure or entry.healthy or entry.code == "idle"


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.code)
def test_an_entry_leads_to_a_section(entry: CodeEntry) -> None:
    page, _, section = entry.page.partition("#")

    assert Path(ROOT / page).is_file()
    assert not section or section in anchors(ROOT / page)


def test_no_name_has_two_meanings() -> None:
    names = [name for group in GROUPS.values() for entry in group.entries for name in (entry.code, *entry.also)]

    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_alert_leads_to_a_code() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8"))

    assert alerts
    assert [alert for alert in alerts if len(search(alert).named) != 1] == []


def test_importing_the_sdk_does_not_read_the_table() -> None:
    program = "import sys, wallaroo_spark.connector, wallaroo_spark.codes; print('tomllib' in sys.modules)"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout == "False\n"
