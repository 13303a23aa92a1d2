"""docs/pubsub.md names every argument there is, docs/pubsub/protocol.md every tag and code, with tested vectors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tests.pubsub.mutants import MUTANTS
from tests.pubsub.test_messages import VECTORS
from wallaroo_spark.pubsub.messages import _TAGS, Why
from wallaroo_spark.pubsub.subscribing.subscription import subscribe

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOPICS = (DOCS / "pubsub.md").read_text(encoding="utf-8")
PAGE = (DOCS / "pubsub/protocol.md").read_text(encoding="utf-8")


def test_every_argument_is_explained() -> None:
    named = {name for row in re.findall(r"^\| (`.+?) \|", TOPICS, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}

    assert set(inspect.signature(subscribe).parameters) - {"topic"} <= named


def test_every_tag_and_code_is_there() -> None:
    assert dict(re.findall(r"^\| (\d) \| (\w+) \|", PAGE, re.MULTILINE)) == {
        str(tag): kind.__name__ for kind, tag in _TAGS.items()
    }
    assert [code for code in Why if f"| `{code}` |" not in PAGE] == []


def test_the_vectors_are_those_that_are_tested() -> None:
    assert [text for _, text in VECTORS if text not in PAGE] == []


def test_the_number_of_broken_rules_is_right() -> None:
    assert len(MUTANTS) == 22
    assert "Twenty-two rules" in PAGE
