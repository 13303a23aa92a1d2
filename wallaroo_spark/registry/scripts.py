"""The Lua scripts. Redis runs each of them as one atomic step.

The keys of a receiver have its name as hash tag, so that one node of a Redis cluster has all of them:

- ``leases``       hash, slot → JSON of a lease, when it ``expires`` (ms of Redis' own clock), and whether
                   it is ``whole``: a renewal has named all instances of the slot since the lease was written
- ``assignments``  hash, instance → ``slot:generation``
- ``claims``       hash, stream id → ``slot:generation``
- ``cursors``      hash, ``assignments`` and ``claims`` → where the next renewal goes on to delete void ones
- ``submission``   the number of the last submission
- ``reports``      hash, slot → the last report of its holder, in JSON; of applications only, and written by no script
- ``lock:…``       the owner of a lock; the key expires

An expired lease is not deleted, because its submission and generation are the least that a later lease may have. A
released lease is not deleted either; its holder is empty. Assignments and claims of a lease that was released or
replaced do not count, and renewals delete them some at a time. Numbers are passed as decimal text. Only times,
submissions and generations (milliseconds, well below 2^53) are converted to Lua's numbers, which are doubles; stream
ids (u64) are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Script:
    """A Lua script that Redis runs as one atomic step."""

    keys: tuple[str, ...]
    """The names of its keys without the receiver's prefix, in the order of KEYS; a trailing colon: a family of keys."""
    source: str
    """The Lua text."""


def _script(keys: tuple[str, ...], *files: str) -> Script:
    """The script in these files of the folder ``lua``, which are joined; the last one tells of KEYS and ARGV."""
    folder = resources.files("wallaroo_spark.registry") / "lua"
    return Script(keys, "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in files))


NEXT_SUBMISSION = _script(("submission", "leases"), "leases", "next_submission")
ACQUIRE = _script(("leases",), "leases", "acquire")
RENEW = _script(("leases", "assignments", "claims", "cursors"), "leases", "renewals", "renew")
RELEASE = _script(("leases",), "leases", "release")
FORGET = _script(("leases", "assignments"), "leases", "forget")
ASSIGN = _script(("leases", "assignments"), "leases", "assign")
CLAIM = _script(("leases", "claims"), "leases", "renewals", "claim")
UNCLAIM = _script(("claims",), "give_up")
UNASSIGN = _script(("assignments",), "give_up")
LOCK = _script(("lock:",), "lock")
UNLOCK = _script(("lock:",), "unlock")
