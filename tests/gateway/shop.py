"""A shop's schema, and short ways to make messages."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.api import cloudevents_pb2 as ce
from wallaroo_spark.api import pipelines_pb2 as pb

SHOP = """
kind: Namespace
name: shop
---
kind: Stream
name: orders
namespace: shop
partitions: 2
---
kind: Stream
name: shipments
namespace: shop
---
kind: Pipeline
name: fulfil
namespace: shop
inputStream: orders
triggers: [order.created]
startPoint: {location: beginning}
stages:
  - name: charge
  - name: ship
    dependencies: [root_event, charge]
    streamOutputs: [shipments]
---
kind: Exchange
name: prices
namespace: shop
---
kind: Endpoint
name: quote
namespace: shop
---
kind: Endpoint
name: chat
namespace: shop
input: stream
output: stream
"""
TOKENS = """
---
kind: Token
name: seller
permissions: [{access: publish, kind: Stream, namespace: shop, name: orders}]
---
kind: Token
name: worker
permissions: [{access: subscribe, namespace: shop}]
---
kind: Token
name: everything
permissions: [{access: all}]
"""


def event(id: str, type: str = "order.created", data: bytes | None = None, **extensions: str) -> ce.CloudEvent:
    """An event of the source ``test``."""
    made = ce.CloudEvent(id=id, source="test", spec_version="1.0", type=type)
    if data is not None:
        made.binary_data = data
    for name, value in extensions.items():
        made.attributes[name].ce_string = value
    return made


def publish(*ids: str, partition: int | None = 0, stream: str = "shop/orders", **fields: Any) -> pb.PublishRequest:
    """A request for events of these ids."""
    return pb.PublishRequest(stream=stream, events=[event(id) for id in ids], partition=partition, **fields)


def join(group: str = "readers", **fields: Any) -> pb.SubscriberMessage:
    """The first message of a subscriber that reads from the beginning."""
    start = pb.StartPoint(location=pb.StartPoint.BEGINNING)
    made: dict[str, Any] = {"stream": "shop/orders", "group": group, "durable": True, "start": start, **fields}
    return pb.SubscriberMessage(join=pb.JoinGroup(**made))


def work(stage: str, concurrency: int = 1) -> pb.WorkerMessage:
    """The first message of a worker."""
    return pb.WorkerMessage(join=pb.JoinStage(pipeline="shop/fulfil", stage=stage, concurrency=concurrency))
