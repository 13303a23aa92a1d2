"""References travel nested and are used flat, and ranges between them keep every u64 on their way."""

from __future__ import annotations

import json

import pytest

from wallaroo_spark.references import PlannedRange, Reference, StreamKey, flatten, nest

LARGEST = (1 << 64) - 1


def test_references_travel_nested_and_are_used_flat() -> None:
    nested: dict[str, dict[str, Reference]] = {"shop-1": {"1": 5, "2": "e:0:1:2"}, "": {str(LARGEST): 0}}
    flat = flatten(nested)

    assert flat == {StreamKey("shop-1", 1): 5, StreamKey("shop-1", 2): "e:0:1:2", StreamKey("", LARGEST): 0}
    assert nest(flat) == nested
    with pytest.raises(ValueError, match="invalid literal"):
        flatten({"shop-1": {"one": 5}})


@pytest.mark.parametrize("start", [None, 3])
def test_a_planned_range_is_the_same_behind_json(start: int | None) -> None:
    planned = PlannedRange(StreamKey("shop-1", LARGEST), start, "e:0:1:2")

    assert planned.to_json() == ["shop-1", str(LARGEST), start, "e:0:1:2"]
    assert PlannedRange.from_json(json.loads(json.dumps(planned.to_json()))) == planned


def test_a_planned_range_is_named_by_instance_and_stream() -> None:
    assert str(PlannedRange(StreamKey("shop-1", 7), None, 9)) == "instance 'shop-1' stream 7 (None, 9]"
    assert str(PlannedRange(StreamKey("", 7), 4, 9)) == "stream 7 (4, 9]"
