"""``docs/aqueduct/protocol.md`` has the machine's rules, and ``tests/aqueduct/rules.md`` the specification's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.aqueduct.machine.test_violations import VIOLATIONS
from tests.conftest import ROOT
from wallaroo_spark.aqueduct.violations import Rule

PAGE = (ROOT / "docs" / "aqueduct" / "protocol.md").read_text(encoding="utf-8")
RULES = (ROOT / "tests" / "aqueduct" / "rules.md").read_text(encoding="utf-8")


def test_the_page_has_every_rule_with_its_code() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d) \| ", PAGE.split("\n## Violations\n")[1], re.MULTILINE)

    assert rows == [(str(rule), str(int(rule.close_code))) for rule in Rule]


SENTENCES = {
    "QUIC": 2,
    "ZeroRTT": 8,
    "Var len ints": 1,
    "Header data": 3,
    "Pos-neg range data": 1,
    "Frames": 6,
    "Frame types": 9,
    "Connection control stream": 7,
    "Senders and receivers": 1,
    "Sending a message": 6,
    "Routing a received message": 3,
    "Processing a routed message": 12,
    "Creating senders, receivers, and the channel control stream": 6,
    "Acking and nacking": 4,
    "Finishing a sender": 11,
    "Closing a receiver": 10,
    "Cancelling a sender": 6,
    "Application closing a receiver": 1,
    "Cascading loss detection": 12,
    "Error handling": 1,
}
"""The sections of the specification, and how many of their sentences have the word *must*, or say that something is a
protocol error or violation. *Frame types* are nine sections of one sentence. Two sentences with *must* demand nothing:
one of *Frames* (applications may process messages in another order) and one of *Channels lost in transit*."""
CASES = {
    "test_a_violation_closes_the_connection_by_the_name_of_its_rule": [*VIOLATIONS, "all"],
    "test_bytes_that_are_no_frame_are_refused_by_the_name_of_the_rule": list(map(str, Rule)),
}
"""Tests whose rows name cases."""


def _rules() -> Iterator[tuple[str, str, str]]:
    """The rows of the table: the section, the rule, and what holds it; short names of tests are written out."""
    names, table = RULES.split("\n| section |")
    shorts = dict(re.findall(r"^\| (\*\w+\*)(?: \(cases\))? \| (`test_\w+`)", names, re.MULTILINE))
    section = ""
    for row in re.findall(r"^\| (.*) \|$", re.sub(r"\*\w+\*", lambda one: shorts[one[0]], table), re.MULTILINE):
        named, rule, held = row.split(" | ")
        section = named.strip() or section
        yield section, rule, held


def test_the_table_of_rules_has_every_sentence_of_the_specification() -> None:
    several = {"two": 2, "three": 3}
    found = Counter[str]()
    for section, rule, _ in _rules():
        count = re.search(r"\((\w+) sentences\)$", rule)
        found[section] += several[count[1]] if count else 1

    assert found == SENTENCES


def test_what_holds_each_rule_exists() -> None:
    files = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "aqueduct").rglob("test_*.py"))
    tests = set(re.findall(r"def (test_\w+)", files))
    rulings = set(re.findall(r"^(\d+)\. ", PAGE.split("## Rulings")[1].split("\n## ")[0], re.MULTILINE))
    for section, rule, held in _rules():
        named = re.findall(r"`(test_\w+)`(?: \(([^)]*)\))?", held)
        ruled = re.findall(r"ruling (\d+)", held)
        assert named or ruled, (section, rule)
        assert {name for name, _ in named} <= tests, (section, rule)
        assert set(ruled) <= rulings, (section, rule)
        for name, cases in named:
            if name in CASES:
                one = "|".join(map(re.escape, sorted(CASES[name], key=len, reverse=True)))
                assert re.fullmatch(f"(?:{one})(?:, (?:{one}))*", cases), (section, rule, cases)
