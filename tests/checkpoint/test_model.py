"""Offset and commit logs as text and as sets of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.checkpoint.model import (
    PlannedBatch,
    holes,
    is_commit,
    newest_committed,
    newest_planned,
    parse_offsets,
    receivers_in,
    settings_in,
)
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.references import References, changed

from .conftest import DATA, offset, offsets_text

batches = st.sets(st.integers(0, 30))
references = st.dictionaries(
    st.text(max_size=4),
    st.dictionaries(
        st.integers(0, 2**64 - 1).map(str), st.integers(0, 2**64 - 1) | st.text(max_size=8), min_size=1, max_size=3
    ),
    max_size=3,
)


def parsed(batch: int, text: str, receiver: str) -> PlannedBatch | None:
    """The references of a batch whose offsets name no plan."""
    return parse_offsets(batch, text, receiver, lambda named: pytest.fail(f"{named} is read"))


def expected(batch: int) -> PlannedBatch:
    end = (batch + 1) * 100
    return PlannedBatch(batch, {"shop-1": {"7": end, "9": f"e:1700000000000:{end}"}})


@pytest.mark.parametrize("sample", sorted(path.name for path in DATA.iterdir() if path.is_dir()))
def test_files_of_spark_are_read(sample: str) -> None:
    files = sorted((DATA / sample / "offsets").glob("[0-9]*"))
    assert files
    for file in files:
        batch = int(file.name)
        assert parsed(batch, file.read_text(), "orders") == expected(batch)
        assert parsed(batch, file.read_text(), "nobody") is None
    for file in (DATA / sample / "commits").glob("[0-9]*"):
        assert is_commit(file.read_text())


def test_each_of_two_receivers_finds_its_own_source() -> None:
    text = (DATA / "v2-two-receivers/offsets/1").read_text()
    assert text.index('"returns"') < text.index('"orders"'), "the sample is one in which the order is not the plan's"
    assert parsed(1, text, "returns") == expected(1)


def test_of_two_sources_of_one_receiver_the_one_that_is_less_far_counts() -> None:
    one: References = {"a": {"1": 9, "2": 7, "3": "e:0:5:40"}, "b": {"4": 1}, "": {"5": 2}}
    other: References = {"a": {"1": 2**63, "2": 7, "3": "e:0:5:7"}, "": {"5": 1, "6": 3}}
    for first, second in ((one, other), (other, one)):
        planned = parsed(4, offsets_text(offset(first), "-", offset(second)), "orders")
        assert planned is not None
        assert planned.references["a"] == {"1": 9, "2": 7, "3": "e:0:5:7"}
        assert planned.references[""] == {"5": 1}
        assert not planned.references.get("b")
        assert planned.undecided == ()


def test_references_without_an_order_are_said_to_be_undecided_where_two_sources_differ() -> None:
    opaque = '"wallaroo":1,"ids":"opaque"'
    one = offset({"a": {"1": 9, "2": 3, "3": "e:0:5:40", "4": 8}, "": {"5": 2}}).replace('"wallaroo": 1', opaque)
    other = offset({"a": {"1": 8, "2": 3, "3": "e:1:5:7", "4": "e:0:5:1"}, "": {"5": 1}}).replace(
        '"wallaroo": 1', opaque
    )
    assert opaque in one
    planned = parsed(4, offsets_text(one, other), "orders")
    assert planned == PlannedBatch(4, {"a": {"2": 3}, "": {"5": 1}}, (("a", "1"),))


def test_the_receivers_of_a_plan_are_named() -> None:
    text = offsets_text("-", '{"logOffset":3}', offset({}), offset({}).replace("orders", "bills"), offset({}))
    assert receivers_in(4, text) == ("bills", "orders")


def test_offsets_of_other_sources_may_be_anything() -> None:
    text = offsets_text("-", "12", "not JSON at all", "[1]", '{"logOffset":3}', offset({"a": {"1": 5}}), "{broken")
    assert parsed(0, text, "orders") == PlannedBatch(0, {"a": {"1": 5}})


def test_unknown_keys_and_a_missing_metadata_line_are_tolerated() -> None:
    line = '{"later":[1],"streams":{"":{"3":18446744073709551615}},"receiver":"orders","wallaroo":1}'
    assert parsed(0, f"v1\n\n{line}\n", "orders") == PlannedBatch(0, {"": {"3": 2**64 - 1}})


def test_a_name_with_a_colon_or_a_line_separator_is_kept_whole() -> None:
    scopes = {"shop:1\u2028": {"7": 1}}
    raw = offset(scopes).replace("\\u2028", "\u2028")
    assert parsed(0, offsets_text(raw), "orders") == PlannedBatch(0, scopes)
    v2 = offsets_text(f"0:{raw}").replace("v1", "v2", 1)
    assert parsed(0, v2, "orders") == PlannedBatch(0, scopes)


def test_a_plan_without_any_offset_in_format_2_holds_nothing_of_ours() -> None:
    assert parsed(0, 'v2\n{"batchWatermarkMs":0}', "orders") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "starts with ''"),
        ("v3\n{}\n-", "starts with 'v3'"),
        ("v1", "is truncated"),
        ('v1\n{"batchWatermarkMs":0', "is truncated"),
        ("v1\n{}", "is truncated"),
        ("v1\n7\n-", "is truncated"),
        (offsets_text(offset({"a": {"1": 5}})[:-3]), "an offset of this package that is not JSON"),
        (offsets_text('{"wallaroo":3,"receiver":"orders","streams":{}}'), "an offset of version 3"),
        (offsets_text('{"wallaroo":2,"receiver":"orders","plan":"7"}'), "does not name a plan: '7'"),
        (offsets_text('{"wallaroo":1,"receiver":"orders"}'), "without streams"),
        (offsets_text('{"wallaroo":1,"receiver":"orders","streams":{"a":7}}'), "no streams in the scope 'a'"),
        (offsets_text('{"wallaroo":1,"receiver":"orders","streams":{"a":{"x":7}}}'), "the stream id 'x'"),
        (offsets_text('{"wallaroo":1,"receiver":"orders","streams":{"a":{"-1":7}}}'), "the stream id '-1'"),
        (offsets_text('{"wallaroo":1,"receiver":"orders","streams":{"a":{"1":true}}}'), "the reference True"),
        (offsets_text('{"wallaroo":1,"receiver":"orders","streams":{"a":{"1":-1}}}'), "the reference -1"),
        (offsets_text('{"wallaroo":1,"receiver":"orders","streams":{"a":{"1":1.5}}}'), "the reference 1.5"),
        (offsets_text('{"wallaroo":1,"receiver":"orders","streams":{"a":{"1":null}}}'), "the reference None"),
    ],
)
def test_a_plan_that_cannot_be_trusted_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parsed(3, text, "orders")
    assert problem in str(caught.value)
    assert "offsets/3" in str(caught.value)


@given(st.integers(0, 2**31), references)
def test_references_survive_the_offset_log(batch: int, streams: dict[str, dict[str, int | str]]) -> None:
    text = offsets_text("-", offset(streams), offset({}, "returns"))
    assert parsed(batch, text, "orders") == PlannedBatch(batch, streams)


@given(references, st.data())
def test_a_plan_that_is_cut_anywhere_is_never_read_as_another(
    streams: dict[str, dict[str, int | str]], data: st.DataObject
) -> None:
    text = offsets_text(offset(streams))
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    try:
        found = parsed(0, cut, "orders")
    except CheckpointError:
        return
    # Cut before our own line shows its name, it cannot be told from another kind of source.
    assert found is None
    assert '"wallaroo"' not in cut


@pytest.mark.parametrize("text", ['v1\n{"nextBatchWatermarkMs":0}', "v1\n{}\n", 'v3\n{"stateUniqueIds":{"0":[["a"]]}}'])
def test_a_whole_commit_file_is_a_commit(text: str) -> None:
    assert is_commit(text)


@pytest.mark.parametrize("text", ["", "v1", "v1\n", 'v1\n{"nextBatch', "{}", "v\n{}", "v1\n7"])
def test_half_a_commit_file_is_none(text: str) -> None:
    assert not is_commit(text)


@pytest.mark.parametrize(
    ("offsets", "commits", "committed", "planned"),
    [
        (set(), set(), None, None),
        ({0}, set(), None, 0),
        ({0, 1}, {0}, 0, 1),
        ({0, 1}, {0, 1}, 1, None),
        ({0, 6, 11}, {0, 6}, 6, 11),
        ({5}, {4}, None, 5),
        (set(), {4}, None, None),
        ({3}, {4}, 3, None),
        ({0, 6}, {0, 8}, 6, None),
    ],
)
def test_plans_and_commits_give_the_newest_of_each(
    offsets: set[int], commits: set[int], committed: int | None, planned: int | None
) -> None:
    assert newest_committed(offsets, commits) == committed
    assert newest_planned(offsets, commits) == planned


@given(batches, batches)
def test_no_batch_counts_as_committed_without_a_commit_of_it_or_a_later_one(
    offsets: set[int], commits: set[int]
) -> None:
    newest = newest_committed(offsets, commits)
    qualified = {batch for batch in offsets if any(commit >= batch for commit in commits)}
    assert newest == (max(qualified) if qualified else None)


@given(batches, batches)
def test_a_planned_batch_has_no_commit_at_or_beyond_it(offsets: set[int], commits: set[int]) -> None:
    planned = newest_planned(offsets, commits)
    if planned is None:
        assert not offsets or (commits and max(commits) >= max(offsets))
    else:
        assert planned == max(offsets)
        assert all(commit < planned for commit in commits)


@given(batches)
def test_batches_that_asynchronous_progress_leaves_out_of_both_logs_are_a_hole(present: set[int]) -> None:
    missing = holes(present, present)
    assert not set(missing) & present
    if present:
        assert present | set(missing) == set(range(min(present), max(present) + 1))


@st.composite
def purged(draw: st.DrawFn) -> tuple[set[int], set[int]]:
    """Both logs of a query that ran, was killed while Spark purged them, and ran again, some times."""
    offsets: set[int] = set()
    commits: set[int] = set()
    newest = -1
    for _ in range(draw(st.integers(1, 4))):
        ran = range(newest + 1, newest + 1 + draw(st.integers(1, 12)))
        offsets |= {*ran}
        commits |= {*ran} - ({ran[-1]} if draw(st.booleans()) else set())
        newest = ran[-1] if ran[-1] in commits else ran[-1] - 1
        below = draw(st.integers(0, max(0, newest)))
        # All that is old in one log goes before the other is begun, each in any order.
        for log in (offsets, commits):
            old = sorted(batch for batch in log if batch < below)
            gone = draw(st.sets(st.sampled_from(old))) if old else set()
            log.difference_update(gone)
            if len(gone) < len(old):
                break
    return offsets, commits


@given(purged())
def test_a_purge_that_was_cut_short_leaves_no_holes(logs: tuple[set[int], set[int]]) -> None:
    assert holes(*logs) == ()


def test_holes_are_found_behind_the_rest_of_a_purge() -> None:
    assert holes({0, 3, 5, 6, 7, 8}, {0, 1, 2, 3, 4, 5, 6, 7}) == ()
    assert holes({5, 6, 7, 8}, {1, 3, 5, 6, 7}) == ()
    assert holes({6, 11, 12}, {0, 6, 11}) == (7, 8, 9, 10)


def test_only_differences_are_changed() -> None:
    before: References = {"a": {"1": 10, "2": 20}, "b": {"1": 5}}
    after: References = {"a": {"1": 10, "2": 25, "3": 1}, "b": {"1": 5}, "c": {"9": "e:1:2"}}
    assert changed(before, after) == {"a": {"2": 25, "3": 1}, "c": {"9": "e:1:2"}}


@given(references)
def test_everything_is_changed_from_nothing_and_nothing_from_itself(streams: dict[str, dict[str, int | str]]) -> None:
    assert changed(None, streams) == streams
    assert changed(streams, streams) == {}


def test_the_settings_of_spark_are_read() -> None:
    text = 'v1\n{"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"3"}}\n{"inbox":{},"batch":-1}\n-'

    assert settings_in(0, text) == {"spark.sql.shuffle.partitions": "3"}
    assert settings_in(0, offsets_text("-")) == {}
    with pytest.raises(CheckpointError, match="truncated"):
        settings_in(0, text[:30])
