"""A driver as a process of its own that writes down all that it and its Spark show to anybody.

    python -m tests.receiver.shown DIRECTORY

It runs a receiver on the Redis of ``REGISTRY`` and one on an embedded Redis, each with a query that commits a batch and
then one that fails, with Spark's log as talkative as it may be. Plans, progress, errors, statuses, pages of the UI and
the keys of Redis go to files in DIRECTORY; what is logged goes to standard error. ``secrets.json`` has what none may
hold.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import redis
from pyspark.sql import SparkSession

from tests.conftest import LOCAL_SPARK
from tests.receiver.support import Feeders, addresses, numbered
from tests.waiting import SECONDS
from wallaroo_spark import Receiver
from wallaroo_spark.observe.faces.records import to_json

PAGES = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")
MOST_PAGES = 60


def main(directory: Path) -> None:
    """Run both receivers, and end."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.INFO)
    (directory / "events").mkdir()
    builder = SparkSession.builder.master("local[3]").appName("shown")
    settings = {
        **LOCAL_SPARK,
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(directory / "events"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("DEBUG")
    secrets = {"cookie": os.environ["COOKIE"]}
    for kind in ("given", "embedded"):
        # What is given is given in clear, as in a first try.
        given = {"registry": os.environ["REGISTRY"], "token": os.environ["TOKEN"]} if kind == "given" else {}
        with Receiver(spark, kind, workers=1, cookie=os.environ["COOKIE"], **given) as receiver:
            url = receiver.registry_url
            secrets |= {f"{kind} password": urlsplit(url).password or "", f"{kind} token": receiver._token}
            for name, text in shown_by(spark, receiver, directory / f"checkpoint-{kind}").items():
                (directory / f"{kind}-{name}.txt").write_text(text, encoding="utf-8")
            (directory / f"{kind}-redis.txt").write_text(redis_holds(url), encoding="utf-8")
            write_pages(spark.sparkContext.uiWebUrl or "", directory, kind)
    spark.stop()
    (directory / "secrets.json").write_text(json.dumps(secrets), encoding="utf-8")


def shown_by(spark: Any, receiver: Receiver, checkpoint: Path) -> dict[str, str]:
    """The outputs of a receiver, its stream and its queries."""
    rows = receiver.stream().selectExpr("CAST(value AS STRING) AS line", "stream")
    found = {"plan": rows._jdf.queryExecution().toString(), "status": f"{receiver!r} {receiver.options!r}"}
    rows.explain(True)
    with Feeders() as feeders:
        connector = feeders.connect("shop-1", addresses(receiver), cookie=os.environ["COOKIE"])
        sink = rows.writeStream.format("noop").queryName(f"shown {receiver.name}")
        query = receiver.start(sink, checkpoint=str(checkpoint))
        feeders.feed(connector, numbered("first", 1, 20), end=False).result(SECONDS)
        query.explain(True)
        found["query"] = query._jsq.toString() + query._jsq.explainInternal(True)
        found["progress"] = json.dumps([str(one.json) for one in query.recentProgress]) + str(query.status)
        found["status"] += json.dumps(to_json(receiver.status()))
        query.stop()
        broken = rows.selectExpr("assert_true(line IS NULL)").writeStream.format("noop")
        query = receiver.start(broken, checkpoint=str(checkpoint))
        feeders.feed(connector, numbered("second", 1, 20), end=False)
        try:
            query.awaitTermination(int(SECONDS))
        except Exception as error:
            found["error"] = f"{error!r} {error} {query.exception()!r} {query.exception()}"
        assert found["error"]
    return found


def redis_holds(url: str) -> str:
    """Every key of a Redis with its value."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return "\n".join(
            f"{key} {client.hgetall(key) if client.type(key) == 'hash' else client.get(key)}"
            for key in sorted(client.keys("*"))
        )


def write_pages(root: str, directory: Path, kind: str) -> None:
    """The pages of Spark's UI and of its REST interface, and those that they lead to."""
    (application,) = json.loads(read(f"{root}/api/v1/applications"))
    api = f"{root}/api/v1/applications/{application['id']}/"
    todo = [f"{root}/{page}" for page in PAGES]
    todo += [api + name for name in ("jobs", "stages", "environment", "sql?details=true&planDescription=true")]
    seen: set[str] = set()
    while todo and len(seen) < MOST_PAGES:
        page = todo.pop(0)
        if page in seen:
            continue
        seen.add(page)
        text = read(page)
        (directory / f"{kind}-page-{len(seen)}.txt").write_text(f"{page}\n{text}", encoding="utf-8")
        links = re.findall(r"""href=["']([^"'#]*/(?:execution|job|stage|statistics)/\?[^"'#]*)""", text)
        todo += [urljoin(root, link.replace("&amp;", "&")) for link in links]


def read(page: str) -> str:
    """A page's text."""
    with urllib.request.urlopen(page, timeout=SECONDS) as answer:
        text: str = answer.read().decode("utf-8", "replace")
        return text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
