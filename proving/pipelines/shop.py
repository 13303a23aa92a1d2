"""The declared streams and pipelines of a simulated history."""

from __future__ import annotations

import random

from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.declarations import StartPoint

ORDERS = [PartitionKey("shop/orders", partition) for partition in (0, 1, 2)]
SHIPMENTS = [PartitionKey("shop/shipments", partition) for partition in (0, 1, 2)]
DEAD = [PartitionKey("shop/dead", 0)]
KEYS = [*ORDERS, *SHIPMENTS, *DEAD]
LATER = [ORDERS[2], SHIPMENTS[2]]
"""Partitions that a later version of the schema adds."""
GHOST = PartitionKey("shop/ghost", 0)
"""A partition that is not declared: it refuses each statement."""
TRIGGER = "order.created"
FULFIL = "shop/fulfil"
NOTIFY = "shop/notify"
_BEGINNING = StartPoint(location="beginning")


def fulfil(dice: random.Random) -> PipelinePlan:
    """The pipeline on orders: two entry stages, one of them in Spark, then two tiers."""
    attempts = dice.choice((0, 2))
    stages = [
        StagePlan(
            "charge",
            given_root=True,
            output_required=True,
            attempts=attempts,
            delay=dice.choice((0, 200)),
            longest_delay=500,
            dead_letter="shop/dead" if attempts else "",
        ),
        StagePlan("reserve", given_root=True, output_required=True, function="shop.stock:reserve"),
        StagePlan("ship", (), ("charge", "reserve"), stream_outputs=("shop/shipments",)),
    ]
    if dice.random() < 0.7:
        stages.append(StagePlan("tidy", ("ship",), given_root=dice.random() < 0.5))
    if dice.random() < 0.3:
        stages.append(StagePlan("extra", ("charge",)))
    return PipelinePlan(FULFIL, tuple(stages), (TRIGGER,), dice.choice((1, 2, 3, 10)), _BEGINNING)


def notify(dice: random.Random) -> PipelinePlan:
    """The pipeline on shipments: one stage, in some histories in Spark."""
    mail = StagePlan("mail", given_root=True, function=dice.choice(("", "shop.post:mail")))
    return PipelinePlan(NOTIFY, (mail,), (), dice.choice((1, 2, 50)), _BEGINNING)


def plans(dice: random.Random) -> dict[PartitionKey, PartitionPlan]:
    """A plan for each key, also for those that are declared later."""
    window = dice.choice((5_000, 120_000))
    on_orders, on_shipments = PartitionPlan((fulfil(dice),), window), PartitionPlan((notify(dice),), window)
    others = PartitionPlan((), window)
    return {key: on_orders if key in ORDERS else on_shipments if key in SHIPMENTS else others for key in KEYS}
