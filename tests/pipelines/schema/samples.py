"""Documents that the tests of schemas share."""

from __future__ import annotations

SHOP = """\
kind: Namespace
name: shop
---
kind: Stream
name: orders
namespace: shop
partitions: 2
ttl: 7d
---
kind: Stream
name: shipments
namespace: shop
---
kind: Pipeline
name: fulfil
namespace: shop
inputStream: orders
triggers: [shop.order.created]
maxParallel: 50
startPoint: {location: beginning}
stages:
  - name: charge
  - name: reserve
    run: shop.stock:reserve
  - name: ship
    dependencies: [root_event, charge, reserve]
    streamOutputs: [shipments]
    retry: {maxAttempts: 5, deadLetterStream: shipments}
  - name: tidy
    after: [ship]
---
kind: Exchange
name: news
namespace: shop
---
kind: Endpoint
name: quote
namespace: shop
output: stream
---
kind: Schedule
name: closing
namespace: shop
stream: orders
cron: 0 18 * * mon-fri
timeZone: Europe/Berlin
type: shop.day.closed
---
kind: Token
name: till
ttl: 90d
permissions:
  - {access: publish, kind: Stream, namespace: shop, name: orders}
  - {access: subscribe, namespace: shop}
"""


def schedule(stream: str = "orders", cron: str = "0 6 * * *") -> str:
    """The documents of a schedule."""
    return (
        "kind: Namespace\nname: shop\n---\nkind: Stream\nname: orders\nnamespace: shop\n---\n"
        f"kind: Schedule\nname: daily\nnamespace: shop\nstream: {stream}\ncron: {cron}\ntype: shop.day"
    )


def pipeline(stages: str) -> str:
    """The documents of a pipeline with these stages."""
    return (
        "kind: Namespace\nname: shop\n---\nkind: Stream\nname: orders\nnamespace: shop\n---\n"
        f"kind: Pipeline\nname: fulfil\nnamespace: shop\ninputStream: orders\nstages:\n{stages}"
    )
