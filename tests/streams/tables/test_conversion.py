"""Events as rows of a stream's table, and back."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.samples import canonical
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.streams.rows import RECORDS, as_events, as_rows

NOON = 1_700_000_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
times = st.one_of(
    texts,
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
)
known = st.fixed_dictionaries(
    {}, optional={"subject": texts, "time": times, "datacontenttype": texts, "dataschema": texts}
)
extensions = st.dictionaries(st.text("abc0", min_size=1, max_size=3), texts, max_size=3)
attributes = st.tuples(known, extensions).flatmap(
    lambda both: st.permutations([(name, value) for one in both for name, value in one.items()]).map(tuple)
)
events = st.builds(CloudEvent, texts, texts, texts, st.none() | st.binary(max_size=5), attributes)


@given(st.lists(events, max_size=5))
def test_an_event_comes_back_from_its_row_with_its_attributes_in_order(given: list[CloudEvent]) -> None:
    rows = as_rows(7, given, NOON)

    assert rows.schema == RECORDS
    assert rows.column("offset").to_pylist() == list(range(7, 7 + len(given)))
    found = as_events(rows)
    assert found == tuple(canonical(event) for event in given)
    assert [dict(event.attributes) for event in found] == [dict(event.attributes) for event in given]
    assert as_events(pa.Table.from_batches([rows])) == found
    assert as_events(rows.slice(1, 2)) == found[1:3]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("2024-02-29T12:30:00Z", False),
        ("2024-02-29T12:30:00.250Z", False),
        ("2024-02-29T12:30:00.000001Z", False),
        ("1969-12-31T23:59:59.500Z", False),
        ("2024-02-29T12:30:00+01:00", True),
        ("2024-02-29T12:30:00.123456789Z", True),
        ("2024-02-29T12:30:00", True),
        ("yesterday", True),
        ("0001-01-01T00:00:00+14:00", True),
    ],
)
def test_the_text_of_a_time_is_kept_where_the_column_would_change_it(text: str, kept: bool) -> None:
    event = CloudEvent("1", "/shop", "paid", attributes=(("time", text),))
    rows = as_rows(1, [event], NOON)

    assert ("time" in dict(rows.column("extensions")[0].as_py())) is kept
    assert as_events(rows) == (event,)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("0001-01-01T00:00:00Z", False),
        ("0001-01-01T00:00:00+14:00", False),
        ("0001-01-02T00:00:00Z", True),
        ("9999-12-30T00:00:00Z", True),
        ("9999-12-31T23:59:59Z", False),
        ("9999-12-31T23:59:59-14:00", False),
    ],
)
def test_a_time_that_python_does_not_have_in_every_zone_is_text_only(text: str, column: bool) -> None:
    event = CloudEvent("1", "/shop", "paid", attributes=(("time", text),))
    rows = as_rows(1, [event], NOON)

    assert rows.column("time")[0].is_valid is column
    assert as_events(rows) == (event,)


def test_times_are_timestamps_in_the_table() -> None:
    event = CloudEvent("1", "/shop", "paid", attributes=(("time", "2024-02-29T12:30:00+01:00"),))
    (row,) = as_rows(1, [event], NOON).to_pylist()

    assert row["time"] == datetime(2024, 2, 29, 11, 30, tzinfo=UTC)
    assert row["written_at"] == datetime.fromtimestamp(NOON / 1000, UTC)
