"""The names in an inbox. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from wallaroo_spark.errors import ConfigurationError

DRIVER = "driver"
"""The name under which the driver writes events of its own; nobody reads the answers to them."""
_CLAIM = re.compile(r"([0-9]{20})-[0-9a-f]{8}\.claim")
_GENERATION = re.compile(r"[0-9]{20}")
_FILE = re.compile(r"([0-9]{20})-([1-9][0-9]*)\.arrow")
_GATEWAY = re.compile(r"[A-Za-z0-9_-]{1,100}")


class InboxPosition(NamedTuple):
    """How far the inbox of one gateway is read."""

    generation: int = 0
    """The generation; 0 before the first one."""
    sequence: int = 0
    """The last file of that generation that is read; 0 for none."""


class InboxFile(NamedTuple):
    """A file of events."""

    sequence: int
    """Its number within its generation, from 1 without holes."""
    rows: int
    """Number of events."""

    @property
    def name(self) -> str:
        """Its name in the folder of its generation."""
        return f"{self.sequence:020d}-{self.rows}.arrow"


def is_gateway(name: str) -> bool:
    """Whether a name in the inbox can be that of a gateway."""
    return _GATEWAY.fullmatch(name) is not None


def checked_gateway(name: str) -> str:
    """Return the name of a gateway. Raises :class:`ConfigurationError` for one that cannot be a folder's name."""
    if not is_gateway(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a gateway; give 1 to 100 letters, digits, - and _",
            code="name-invalid",
            name=name,
        )
    return name


def claim_name(generation: int, random: str) -> str:
    """The name of a claim; ``random`` has eight hexadecimal digits."""
    return f"{generation:020d}-{random}.claim"


def generation_name(generation: int) -> str:
    """The name of the folder of a generation."""
    return f"{generation:020d}"


def origin_of(gateway: str, generation: int) -> str:
    """The origin of the events of a generation; those of an earlier generation are sorted first."""
    return f"{gateway}/{generation_name(generation)}"


def claimed(names: Iterable[str]) -> dict[str, int]:
    """The claims among the names in a gateway's folder, with their generations."""
    return {name: int(found[1]) for name in names if (found := _CLAIM.fullmatch(name))}


def generation_folders(names: Iterable[str]) -> list[int]:
    """The generations that have a folder, among the names in a gateway's folder."""
    return [int(name) for name in names if _GENERATION.fullmatch(name)]


def event_files(names: Iterable[str]) -> list[InboxFile]:
    """The files of events among the names in the folder of a generation, in their order."""
    return sorted(InboxFile(int(found[1]), int(found[2])) for name in names if (found := _FILE.fullmatch(name)))
