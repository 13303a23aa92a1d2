"""``./scripts/test ROOM`` runs the tests of a room and of those who may import it."""

from __future__ import annotations

import pytest

from tests import rooms
from tests.test_imports import EVERYBODY, MAY_IMPORT

RULE_TESTS = {f"tests/{name}" for name in rooms.RULES}


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"", *EVERYBODY}))
def test_each_room_is_tested_with_those_who_may_import_it(room: str) -> None:
    found = rooms.tests_of(room)
    assert {*found} > RULE_TESTS
    users = {other for other, allowed in MAY_IMPORT.items() if room in {one.split(".")[0] for one in allowed}}
    assert {f"tests/{one}" for one in users if one} <= {*found}


def test_what_everybody_may_import_is_tested_with_all() -> None:
    assert len(rooms.tests_of("errors")) > len(rooms.tests_of("protocol")) > len(rooms.RULES)
