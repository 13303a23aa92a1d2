"""The files that appear while ``send`` follows a pattern."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from wallaroo_spark.cli.send.inputs import SendInput, files_of, open_input


class NewFiles:
    """Finds files of the patterns that were not there before."""

    def __init__(self, patterns: Sequence[str], known: Sequence[str], framed: bool, settings: dict[str, Any]) -> None:
        self._patterns = patterns
        self._framed = framed
        self._settings = settings
        self._seen = {name: _identity(name) for name in known}

    def look(self) -> list[SendInput]:
        """The inputs of files that have appeared since the last call."""
        there = [name for pattern in self._patterns for name in files_of(pattern)]
        for name in self._seen.keys() - set(there):
            # A file of this name that comes back is a new one.
            if not os.path.exists(name):
                self._seen[name] = None
        identities = set(self._seen.values()) - {None}
        found = []
        for name in there:
            identity = _identity(name)
            # A file that was renamed is still followed under its old name.
            if name not in self._seen and identity is not None and identity not in identities:
                self._seen[name] = identity
                found.append(open_input(name, follow=True, framed=self._framed, options=self._settings, new=True))
        return found


def _identity(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino
