"""The one table of codes: all groups, and every code with its entry."""

from __future__ import annotations

from collections.abc import Mapping

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup
from wallaroo_spark.codes.groups.checkpoints import CHECKPOINTS
from wallaroo_spark.codes.groups.connectors import CONNECTORS
from wallaroo_spark.codes.groups.durable.applications import APPLICATIONS
from wallaroo_spark.codes.groups.durable.causes import APPLICATION_CAUSES
from wallaroo_spark.codes.groups.durable.clients import CLIENTS
from wallaroo_spark.codes.groups.durable.inboxes import INBOXES
from wallaroo_spark.codes.groups.durable.operator import OPERATOR
from wallaroo_spark.codes.groups.durable.tables import TABLES
from wallaroo_spark.codes.groups.network import NETWORK
from wallaroo_spark.codes.groups.options import OPTIONS
from wallaroo_spark.codes.groups.pipelines import GATEWAYS, PIPELINES
from wallaroo_spark.codes.groups.protocol import PROTOCOL
from wallaroo_spark.codes.groups.receiver import RECEIVER
from wallaroo_spark.codes.groups.sending import SENDING
from wallaroo_spark.codes.groups.sinks import SINKS
from wallaroo_spark.codes.groups.status import STATUS
from wallaroo_spark.codes.groups.tools import TOOLS
from wallaroo_spark.codes.groups.topics import TOPICS

GROUPS: tuple[CodeGroup, ...] = (
    STATUS,
    CONNECTORS,
    OPTIONS,
    RECEIVER,
    CHECKPOINTS,
    NETWORK,
    SENDING,
    PROTOCOL,
    SINKS,
    TOPICS,
    PIPELINES,
    APPLICATION_CAUSES,
    APPLICATIONS,
    GATEWAYS,
    INBOXES,
    TABLES,
    OPERATOR,
    CLIENTS,
    TOOLS,
)
"""All groups, in the order of the page."""

ENTRIES: Mapping[str, CodeEntry] = {entry.code: entry for group in GROUPS for entry in group.entries}
"""Every code with its entry."""
