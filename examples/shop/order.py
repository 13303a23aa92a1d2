"""One order by HTTP, and one with a Kafka producer: ``COOKIE=… python order.py 127.0.0.1:8080 127.0.0.1:9092``.

Both return when the order is in the inbox of the shop, where ``doors.yaml`` has put it; the pipeline works on it then.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request

from confluent_kafka import Producer


def event(order: int) -> bytes:
    """The event of an order."""
    return json.dumps({"type": "shop.order.created", "data": {"order": order, "price": 5}}).encode()


def by_http(address: str, cookie: str, order: int) -> None:
    """Send an order as a webhook does."""
    fields = {"Authorization": f"Bearer {cookie}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/v1/streams/orders", event(order), fields)
    with urllib.request.urlopen(request) as answer:
        print(f"order {order}: {answer.status} {answer.read().decode()}", flush=True)


def by_kafka(servers: str, cookie: str, order: int) -> None:
    """Send an order as any Kafka producer does."""
    settings = {"bootstrap.servers": servers, "client.id": "tills", "enable.idempotence": True}
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "tills"}
    producer = Producer({**settings, **login, "sasl.password": cookie})
    producer.produce("orders", event(order), key=str(order))
    assert producer.flush(60) == 0
    print(f"order {order}: delivered", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("http", help="the HTTP door: host:port")
    parser.add_argument("kafka", help="the Kafka door: host:port")
    given = parser.parse_args()
    by_http(given.http, os.environ["COOKIE"], 1)
    by_kafka(given.kafka, os.environ["COOKIE"], 2)
