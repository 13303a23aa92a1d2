"""What ``docs/aqueduct.md`` says of the machine agrees with it."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from wallaroo_spark.aqueduct.violations import Rule

PAGE = (ROOT / "docs" / "aqueduct.md").read_text(encoding="utf-8")


def test_the_page_has_every_rule_with_its_code() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d) \| ", PAGE.split("### Violations")[1], re.MULTILINE)

    assert rows == [(str(rule), str(int(rule.close_code))) for rule in Rule]
