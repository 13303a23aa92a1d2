"""The verbs take events that break programs: each is printed exactly, and harms no other one."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from tests import evil_values as evil
from tests.cli.test_durable import gateway, run
from tests.client.fake_gateway import FakeGateway
from wallaroo_spark.client import Event
from wallaroo_spark.client.events import decode_value

__all__ = ["gateway"]


async def test_events_that_break_programs_are_consumed(gateway: FakeGateway) -> None:
    stream = gateway.memory.streams["shop/orders"][0]
    stream += [
        Event("a", payload, id=str(place), source="/x", datacontenttype="application/json").to_message()
        for place, payload in enumerate(evil.PAYLOADS.values())
    ]
    stream.append(Event("\x1b[2J", "\x1b[2J\u202e", id="last", source="/x").to_message())
    limit = str(len(stream))

    shown = await run(gateway, "consume", "shop/orders", "--start", "beginning", "--limit", limit)
    as_json = await run(gateway, "consume", "shop/orders", "--start", "beginning", "--limit", limit, "--json")

    lines = shown.stdout.splitlines()
    assert len(lines) == len(stream)
    assert all(line.isprintable() for line in lines)
    found = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert all(line.isprintable() for line in as_json.stdout.splitlines())
    for (name, payload), event in zip(evil.PAYLOADS.items(), found, strict=False):
        if "data_base64" in event:
            assert base64.b64decode(event["data_base64"]) == payload, name
        else:
            assert event["data"] == decode_value(payload, "application/json"), name
    assert [event["id"] for event in found] == [*map(str, range(len(evil.PAYLOADS))), "last"]


async def test_lines_that_break_programs_are_published_or_refused_by_their_place(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    payloads = [one for one in evil.PAYLOADS.values() if one and b"\n" not in one]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(payloads) + b"\n")

    published = await run(gateway, "publish", "shop/orders", "--type", "a", "--partition", "0", str(file))

    assert published.stdout == f"Published {len(payloads)} events to shop/orders.\n"
    kept: list[Any] = [Event.from_message(one) for one in gateway.memory.streams["shop/orders"][0]]
    assert [event.data for event in kept] == payloads


EVENTS = (
    b'{"type":"\\ud800"}',
    b'{"type":"t","id":"\\ud800"}',
    b'{"type":"t","time":"10000-01-01T00:00:00Z"}',
    b'{"type":"t","time":"0001-01-01T00:00:00+14:00"}',
    b'{"type":"t","e":1e400}',
    b'{"type":"t","e":18446744073709551616}',
    b'{"type":"t","e":null}',
    b'{"type":"t","e":"\\ud800"}',
    b'{"type":"t","":"x"}',
    b'{"type":""}',
    b'{"type":7}',
    b'{"type":"t","data_base64":"?"}',
    b"[]",
    b"7",
)
"""Lines that are no events."""


async def test_a_whole_event_that_cannot_be_is_named_and_the_others_are_published(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    payloads = [one for one in evil.PAYLOADS.values() if b"\n" not in one]
    lines = [*EVENTS, *(b'{"type":"t","data":' + one + b"}" for one in payloads), b'{"type":"t","id":"last"}']
    file = tmp_path / "events"
    file.write_bytes(b"\n".join(lines) + b"\n")

    shown = await run(
        gateway, "publish", "shop/orders", "--cloudevents", "--partition", "0", "--json", str(file), status=1
    )

    kept = gateway.memory.streams["shop/orders"][0]
    refused = [line for line in shown.stderr.splitlines() if line.startswith(str(file))]
    assert [re.findall(r"line (\d+)", line)[0] for line in refused][: len(EVENTS)] == [*map(str, range(1, 15))]
    assert len(kept) + len(refused) == len(lines)
    assert kept[-1].id == "last"
    assert all(line.isprintable() and len(line) < 1000 for line in refused)


async def test_arguments_that_are_not_utf_8_are_sent_or_refused(gateway: FakeGateway) -> None:
    call = await run(gateway, "call", "shop/price", "--data", "\udcff", status=1)
    key = await run(gateway, "publish", "shop/orders", "--type", "t", "--data", "1", "--key", "\udcff", status=1)
    source = await run(gateway, "publish", "shop/orders", "--type", "t", "--data", "1", "--source", "\udcff", status=1)

    assert "nothing serves shop/price" in call.output
    assert "[invalid-text]" in key.output
    assert "[invalid-text]" in source.output
