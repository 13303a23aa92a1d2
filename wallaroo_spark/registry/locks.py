"""Locks that expire, such as the lock of a receiver's name. Source: ``docs/decisions/one-writer-per-checkpoint.md``."""

from __future__ import annotations

from wallaroo_spark.registry import scripts
from wallaroo_spark.registry.keyspace import Keyspace


class Locks(Keyspace):
    """Locks by name. A lock expires unless its owner renews it, so that an owner that crashed does not keep it."""

    def lock(self, name: str, owner: str, seconds: float) -> bool:
        """Take the lock ``name`` for ``seconds``, or renew it; False when another owner has it."""
        milliseconds = max(1, round(seconds * 1000))
        return bool(self._run(f"lock {name!r}", scripts.LOCK, owner, milliseconds, of=name))

    def unlock(self, name: str, owner: str) -> None:
        """Release the lock ``name``. Does nothing when another owner, or nobody, has it."""
        self._run(f"unlock {name!r}", scripts.UNLOCK, owner, of=name)

    def locked_by(self, name: str) -> str | None:
        """Return the owner of the lock ``name``; None when nobody has it."""
        return self._get(f"look at lock {name!r}", f"lock:{name}")
