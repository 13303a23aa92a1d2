"""The SDK for programs that publish to durable streams, consume them, and work on stages; it does not need Spark.

:class:`AsyncClient` is for asyncio, :class:`Client` is its blocking form. Both connect to any gateway of an
application, and to another one when that is lost. Source: ``docs/pipelines/clients.md``.
"""

from wallaroo_spark.extras import needed_by

with needed_by("wallaroo_spark.client", "client"):
    from wallaroo_spark.client.blocking import (
        BlockingDelivery,
        BlockingMembership,
        BlockingTransaction,
        Client,
        run_stages,
    )
    from wallaroo_spark.client.calls import ServedCall
    from wallaroo_spark.client.client import AsyncClient
    from wallaroo_spark.client.events import Event
    from wallaroo_spark.client.members import (
        ClientTransaction,
        EventPlace,
        Membership,
        Output,
        StageWork,
        StreamDelivery,
        WrittenEvents,
    )
    from wallaroo_spark.client.refusals import ApplicationDescription
    from wallaroo_spark.client.stages import Again, StageFunction, stage
    from wallaroo_spark.client.window import PublishedEvent, RefusedEvent
    from wallaroo_spark.connector.backoff import Backoff

__all__ = [
    "Again",
    "ApplicationDescription",
    "AsyncClient",
    "Backoff",
    "BlockingDelivery",
    "BlockingMembership",
    "BlockingTransaction",
    "Client",
    "ClientTransaction",
    "Event",
    "EventPlace",
    "Membership",
    "Output",
    "PublishedEvent",
    "RefusedEvent",
    "ServedCall",
    "StageFunction",
    "StageWork",
    "StreamDelivery",
    "WrittenEvents",
    "run_stages",
    "stage",
]
