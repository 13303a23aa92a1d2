"""Locks with an owner and an end, such as that of a receiver's name."""

from __future__ import annotations

from wallaroo_spark.registry import scripts
from wallaroo_spark.registry.keyspace import Keyspace


class Locks(Keyspace):
    """Locks by name; one whose owner is gone expires."""

    def lock(self, what: str, owner: str, seconds: float) -> bool:
        """Take the lock called ``what`` for so many seconds, or renew it; False when another owner has it."""
        milliseconds = max(1, round(seconds * 1000))
        return bool(self._run(f"lock {what!r}", scripts.LOCK, owner, milliseconds, of=what))

    def unlock(self, what: str, owner: str) -> None:
        """Give a lock back; nothing happens when the owner does not have it."""
        self._run(f"unlock {what!r}", scripts.UNLOCK, owner, of=what)

    def locked_by(self, what: str) -> str | None:
        """The owner of the lock called ``what``; None when it is free."""
        return self._get(f"look at lock {what!r}", f"lock:{what}")
