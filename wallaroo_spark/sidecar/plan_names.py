"""Plans that are too large for an offset: their names, their chains, and the files that are no longer needed.

Pure: no file is read or written here. A plan is the end reference of every stream of a receiver. Spark's offset
contains a small plan itself, and only the name of a large plan. A named plan is a *snapshot* (all references), or a
chain of *changes*, each relative to its parent, that ends at a snapshot, the *base*. An offset names both ends of the
chain. Numbers increase along a chain, so a file is no longer needed if its number is below the number of the oldest
offset's base. A name is never used twice, because a process may have written a plan and died before Spark knew the
plan's offset.
Source: ``docs/decisions/plans-beside-the-checkpoint.md``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Self

NAMED_VERSION = 2
"""The version of an offset that names its plan. Releases that do not know plans refuse it by this number."""
INLINE_BYTES = 16_384
"""The longest JSON text of references that stands in an offset: a choice, some 500 streams."""
LINKS = 64
"""Changes in a chain before a snapshot is due: a choice, the files that a restart reads at most in the normal case."""
LINKS_AT_MOST = 4 * LINKS
"""Changes in a chain before planning waits for a snapshot, because snapshots in the background have failed."""
_NAME = re.compile(r"([0-9]{1,18})-([0-9a-f]{8})")


class PlanName(NamedTuple):
    """A plan's name: ``number`` grows from plan to plan, ``token`` is random."""

    number: int
    token: str

    def __str__(self) -> str:
        return f"{self.number}-{self.token}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that :meth:`__str__` returns. Raises ValueError for any other text."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not the name of a plan")
        return cls(int(found[1]), found[2])

    @classmethod
    def after(cls, number: int) -> Self:
        """Return a new name with the next number."""
        return cls(number + 1, secrets.token_hex(4))


class NamedPlan(NamedTuple):
    """The plan of an offset: its name, and the name of the snapshot at which its chain ends."""

    plan: PlanName
    base: PlanName

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self | None:
        """The plan that an offset names; None if the offset contains the plan. Raises ValueError for a bad name."""
        if offset.get("wallaroo") != NAMED_VERSION:
            return None
        return cls(PlanName.parse(str(offset.get("plan"))), PlanName.parse(str(offset.get("base"))))

    def offset(self, receiver: str, message_ids: str = "increasing") -> dict[str, Any]:
        """The offset that names this plan."""
        kind = {"ids": message_ids} if message_ids == "opaque" else {}
        return {
            "wallaroo": NAMED_VERSION,
            "receiver": receiver,
            **kind,
            "plan": str(self.plan),
            "base": str(self.base),
        }


class Form(Enum):
    """The form in which a plan is stored."""

    INLINE = "in the offset"
    SNAPSHOT = "in a file of all references"
    CHANGES = "in a file of the changes against its parent"


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain of one plan: its two ends and its length."""

    named: NamedPlan
    """The names of the plan and of its base."""
    links: int = 0
    """Files of changes between the base and the plan."""
    changes: int = 0
    """Changed references in these files."""

    def then(self, name: PlanName, changes: int) -> Chain:
        """The chain with one more file of changes."""
        return Chain(NamedPlan(name, self.named.base), self.links + 1, self.changes + changes)

    def from_snapshot(self, at: Chain) -> Chain:
        """The chain of the same plan with a newer base: the snapshot of an earlier plan, whose chain is ``at``."""
        return Chain(
            NamedPlan(self.named.plan, at.named.plan), self.links - at.links, max(0, self.changes - at.changes)
        )


def form_of(chain: Chain | None, *, small: bool) -> Form:
    """The form of the next plan; ``chain`` is the chain of the plan before, None if an offset contains that plan."""
    if small:
        return Form.INLINE
    if chain is None or chain.links >= LINKS_AT_MOST:
        return Form.SNAPSHOT
    return Form.CHANGES


def snapshot_is_due(chain: Chain, streams: int, links: int = LINKS) -> bool:
    """Whether this plan should get a snapshot: without it a restart would read many files, or many changes."""
    return chain.links >= links or 2 * chain.changes > streams


def not_needed(numbers: Iterable[int], oldest_base: int | None) -> list[int]:
    """The numbers of the files that no offset needs any more, the oldest first.

    ``oldest_base`` is the number of the base of the oldest offset that names a plan; None when no offset does.
    """
    return [] if oldest_base is None else sorted(number for number in numbers if number < oldest_base)
