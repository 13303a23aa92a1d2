"""The names of connector streams: ``NAMESPACE/STREAM``, then ``#PARTITION`` and ``:PRODUCER`` where wanted. Pure.

Source: ``docs/pipelines/bulk.md#names-of-connector-streams``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from wallaroo_spark.gateway.refusals import invalid

_NAME = re.compile(r"([^/#:]+/[^/#:]+)(?:#([0-9]{1,9}))?(?::(.+))?")
_SYNTAX = (
    "NAMESPACE/STREAM, then #PARTITION and :PRODUCER where wanted, such as shop/orders, shop/orders:till-7 or "
    "shop/orders#3:till-7"
)


class ConnectorTarget(NamedTuple):
    """What a connector stream's name says."""

    stream: str
    """Path of the durable stream."""
    partition: int
    """Number of the partition. It must not depend on the number of partitions, which may grow: the reference of the
    connector stream is kept there."""
    producer: str
    """Name of the producer; empty without one."""


def target_of(name: str) -> ConnectorTarget:
    """The target of a connector stream. Raises :class:`Refused`, which has the syntax."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise invalid(
            f"{name[:200]!r} names no stream of this application; the name of a connector stream is {_SYNTAX}"
        )
    return ConnectorTarget(found[1], int(found[2] or 0), found[3] or "")
