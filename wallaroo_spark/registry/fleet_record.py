"""The record of a receiver's fleet, for every program that may read the receiver's status."""

from __future__ import annotations

import json
from collections.abc import Mapping

from wallaroo_spark.registry.connection import RedisConnection
from wallaroo_spark.registry.keyspace import Keyspace

_FRONT, _END = "wallaroo:{", "}:fleet"


class FleetRecord(Keyspace):
    """The fleet's record, which the driver writes: number of workers, query, and the token for status requests."""

    def publish_fleet(self, fleet: Mapping[str, str]) -> None:
        """Replace the fleet's record.

        Every program that may read the receiver's status can read the record, so it must not contain a secret that
        permits more than that.
        """
        text = json.dumps(dict(fleet))
        self._connection.call("publish the fleet", lambda: self._connection.client.set(self._key("fleet"), text))

    def fleet(self) -> dict[str, str]:
        """Return the record that was published last; empty when there is none, or Redis has lost its data."""
        text = self._get("read the fleet", "fleet")
        return self._read("read the fleet", _texts, text) if text is not None else {}

    def publish_report(self, report: str) -> None:
        """Replace the driver's report: a JSON text, without secrets, for programs that show the receiver's status.

        The report stays in Redis when the driver has ended, so that its last state can still be seen.
        """
        self._connection.call("publish the report", lambda: self._connection.client.set(self._key("report"), report))

    def report(self) -> str | None:
        """Return the driver's last report; None when there is none, or Redis has lost its data."""
        return self._get("read the report", "report")

    def publish_slot_report(self, slot: int, report: str) -> None:
        """Replace the report of a slot's holder: a JSON text, without secrets, for programs that show the status."""
        key, client = self._key("reports"), self._connection.client
        self._connection.call("publish the report of a slot", lambda: client.hset(key, str(slot), report))

    def slot_reports(self) -> list[str]:
        """Return the last report of each slot, in no order; also of holders that have ended."""
        key, client = self._key("reports"), self._connection.client
        return [str(text) for text in self._connection.call("read the reports of slots", lambda: client.hvals(key))]


def _texts(text: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in json.loads(text).items()}


def receiver_names(url: str, attempts: int = 5) -> list[str]:
    """The names of the receivers that have published a fleet, sorted; also those that have ended since.

    ``url`` and ``attempts`` are as for :class:`RedisConnection`. Raises :class:`RegistryError` when the registry does
    not answer.
    """
    connection = RedisConnection(url, attempts=attempts, timeout=3.0)
    try:
        return connection.names_between("list the receivers", _FRONT, _END)
    finally:
        connection.close()
