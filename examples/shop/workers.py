"""The stages of the shop in Python: ``python workers.py ADDRESS [STAGE]...``; without a stage it works on all of them.

Any number of these programs may run, and any of them may be killed at any time: a stage's output is recorded once.
"""

from __future__ import annotations

import argparse
from typing import Any

from wallaroo_spark.client import Again, Event, Output, StageWork, run_stages, stage

UNPAYABLE = 1000
"""The price from which on the bank refuses an order."""


def order_of(work: StageWork) -> Any:
    """The order that an instance is about."""
    assert work.root_event is not None
    return work.root_event.value


@stage("shop/fulfil", "pay", concurrency=4)
def pay(work: StageWork) -> Output:
    """Charge the customer; the receipt is the output, and an event of the stream of receipts."""
    order = order_of(work)
    if order["price"] >= UNPAYABLE:
        raise Again(f"the bank refuses order {order['order']}")
    receipt = {"order": order["order"], "paid": order["price"]}
    return Output(receipt, streams={"shop/receipts": Event("shop.order.paid", receipt)})


@stage("shop/fulfil", "reserve", concurrency=4)
def reserve(work: StageWork) -> dict[str, Any]:
    """Reserve the goods, at the same time as the payment."""
    return {"shelf": order_of(work)["order"] % 7}


@stage("shop/fulfil", "ship", concurrency=4)
def ship(work: StageWork) -> Output:
    """Ship the order, once it is paid and reserved."""
    shipment = {"order": order_of(work)["order"], "paid": work.outputs["pay"]["paid"], **work.outputs["reserve"]}
    return Output(shipment, streams={"shop/shipments": Event("shop.order.shipped", shipment)})


@stage("shop/compensate", "release", concurrency=4)
def release(work: StageWork) -> dict[str, Any]:
    """Give the goods of an order back that could not be paid."""
    return {"released": order_of(work)["order"]}


@stage("shop/compensate", "refund", concurrency=4)
def refund(work: StageWork) -> Output:
    """Tell the customer that the order has ended."""
    told = {"order": work.outputs["release"]["released"]}
    return Output(told, streams={"shop/returns": Event("shop.order.returned", told)})


STAGES = {one.name: one for one in (pay, reserve, ship, release, refund)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="gateways: host:port, separated by commas")
    parser.add_argument("stages", nargs="*", help=f"some of {', '.join(STAGES)}")
    given = parser.parse_args()
    run_stages(*(STAGES[name] for name in given.stages or STAGES), address=given.address, source="/shop/workers")
