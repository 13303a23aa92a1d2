"""The record of a whole fleet, for everybody who may read a receiver's status."""

from __future__ import annotations

import json
from collections.abc import Mapping

from wallaroo_spark.registry.keyspace import Keyspace


class FleetRecord(Keyspace):
    """What the driver publishes of its fleet."""

    def publish_fleet(self, fleet: Mapping[str, str]) -> None:
        """Replace the record of the whole fleet, such as its number of workers.

        Everybody who may read a receiver's status reads it, so it holds nothing that permits more than that.
        """
        text = json.dumps(dict(fleet))
        self._connection.call("publish the fleet", lambda: self._connection.client.set(self._key("fleet"), text))

    def fleet(self) -> dict[str, str]:
        """The record that was published last; empty when there is none, or Redis was emptied since."""
        text = self._get("read the fleet", "fleet")
        return self._read("read the fleet", _texts, text) if text is not None else {}


def _texts(text: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in json.loads(text).items()}
