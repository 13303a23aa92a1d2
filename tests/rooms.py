"""``python -m tests.rooms ROOM``: the tests of a room and of the rooms that may import it, a path a line.

``./scripts/test ROOM`` runs them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.test_imports import EVERYBODY, MAY_IMPORT

TESTS = Path(__file__).parent
RULES = ("test_imports.py", "test_architecture.py", "test_documents.py", "test_public_names.py")
"""The rules about files, which any change may break."""


def tests_of(room: str) -> list[str]:
    """The tests to run after a change in a room. Raises :class:`KeyError` for a room that is not in the table."""
    users = [other for other, allowed in MAY_IMPORT.items() if room in {name.partition(".")[0] for name in allowed}]
    if not MAY_IMPORT[room] and room in EVERYBODY:
        users = [*MAY_IMPORT]
    names = [name for each in dict.fromkeys([room, *users]) for name in (each, f"test_{each}.py")]
    return [f"tests/{name}" for name in (*names, *RULES) if name and (TESTS / name).exists()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.rooms", description=__doc__.splitlines()[0])
    parser.add_argument("room", choices=[name for name in MAY_IMPORT if name])
    print("\n".join(tests_of(parser.parse_args().room)))
