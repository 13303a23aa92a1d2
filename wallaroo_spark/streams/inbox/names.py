"""The names in an inbox. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from wallaroo_spark.errors import CheckpointError, ConfigurationError

DRIVER = "driver"
"""The name under which the driver writes events of its own; nobody reads the answers to them."""
SINK = "sink-"
"""Prefix of the names under which transactional sinks write events; a generation of such a name is one batch."""
_CLAIM = re.compile(r"([0-9]{20})-[0-9a-f]{8}\.claim")
_GENERATION = re.compile(r"[0-9]{20}")
_FILE = re.compile(r"([0-9]{20})-([1-9][0-9]*)-([0-9]+)\.arrow")
_GATEWAY = re.compile(r"[A-Za-z0-9_-]{1,100}")
_WRITER = re.compile(rf"{_GATEWAY.pattern}|{SINK}[A-Za-z0-9._-]{{1,64}}")


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
    bytes: int = 0
    """Bytes of its encoded events."""

    @property
    def name(self) -> str:
        """Its name in the folder of its generation."""
        return f"{self.sequence:020d}-{self.rows}-{self.bytes}.arrow"


def positions_of(inbox: Any) -> dict[str, InboxPosition]:
    """The positions in an offset of the source: the value of its key ``inbox``. Raises KeyError, TypeError, ValueError
    or AttributeError for anything else."""
    return {str(gateway): InboxPosition(int(at["generation"]), int(at["sequence"])) for gateway, at in inbox.items()}


def positions_in(offsets: Sequence[Any]) -> dict[str, InboxPosition]:
    """The positions in the offsets of an application's batch; none without a batch. Raises as :func:`positions_of`."""
    return positions_of(offsets[0]["inbox"]) if offsets else {}


def lost_generation(gateway: str, at: InboxPosition, newest: int, where: str) -> CheckpointError:
    """The error for an inbox whose newest claim is older than the position of the checkpoint.

    This package never deletes the claim of a position's generation; without it a gateway would begin a generation that
    is read already. ``newest`` is the generation of the newest claim, 0 without one; ``where`` is the gateway's folder.
    """
    there = f"its newest claim is of generation {newest}" if newest else "it has no claim"
    return CheckpointError(
        f"the inbox of gateway {gateway} was deleted or is an older copy: {there}, and the checkpoint has read "
        f"generation {at.generation}, so what the gateway receives would never be read; restore the whole folder of "
        "the application as it was at one time; or, to go on without the events that were received and not read, "
        f"create the empty file {where}/{claim_name(at.generation, '0' * 8)}",
        code="inbox-lost",
        gateway=gateway,
        generation=at.generation,
        newest=newest,
    )


def is_writer(name: str) -> bool:
    """Whether a name in the inbox can be that of a gateway or a sink."""
    return _WRITER.fullmatch(name) is not None


def checked_gateway(name: str) -> str:
    """Return the name of a gateway. Raises :class:`ConfigurationError` for one that cannot be a folder's name."""
    if not _GATEWAY.fullmatch(name):
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
    found = (_FILE.fullmatch(name) for name in names)
    return sorted(InboxFile(*map(int, one.groups())) for one in found if one is not None)
