"""The JSON of a status."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.observe.snapshots import instance, receiver, slot, stream
from wallaroo_spark.observe.causes import with_causes
from wallaroo_spark.observe.faces.records import from_json, to_json
from wallaroo_spark.observe.receiver import (
    PartitionStatus,
    QueryStatus,
    ReadStatus,
    Refusal,
    SinkStatus,
    TopicStatus,
)
from wallaroo_spark.runtime.long_jobs import Death

GREATEST = (1 << 64) - 1

FULL = receiver(
    slots=(
        slot(
            deaths=(Death(1.5, 2, "killed"),),
            refusals=(Refusal(2.0, "wrong-cookie", "10.0.0.1:5", "", "no"),),
            read=ReadStatus(3, 1, 0.5),
            counts={"messages": 3},
            warnings=("w",),
        ),
    ),
    instances=(instance(),),
    streams=(stream(GREATEST, received=GREATEST, planned="e:0:3:17", committed=None, ack_age=3.0),),
    query=QueryStatus("failed", durations={"addBatch": 12}, error="no space", since=4.0),
    topics=(TopicStatus("totals", "d", "i", (PartitionStatus(0, "serving", "h:1", 4, 2),)),),
    sinks=(SinkStatus("s", "finished", 3),),
)


def test_a_status_survives_its_json() -> None:
    status = with_causes(FULL)

    assert from_json(json.loads(json.dumps(to_json(status)))) == status


def test_ids_and_references_are_text() -> None:
    (shown,) = to_json(FULL)["streams"]

    found = [shown[name] for name in ("stream_id", "received", "planned", "committed")]
    assert found == [str(GREATEST), str(GREATEST), "e:0:3:17", None]


def test_a_reader_ignores_new_fields_and_takes_defaults_of_missing_ones() -> None:
    value = to_json(FULL) | {"news": 1}
    del value["warnings"]

    assert from_json(value) == dataclasses.replace(FULL, warnings=())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema is 2, and this release reads schema 1"),
        ({"name": 7}, "name is 7, and has to be str"),
        ({"query": 3}, "QueryStatus is 3, and has to be an object"),
        ({"slots": [{"slot": 1}]}, "SlotStatus: .*state"),
    ],
)
def test_a_wrong_value_is_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_json(to_json(FULL) | change)
