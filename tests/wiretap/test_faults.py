"""The faults of a seed: the same places in the bytes, however the bytes arrive."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.wiretap.proxy import Cut, Faults, FaultSchedule, Pause

DATA = random.Random(1).randbytes(4000)


def faults_of(faults: Faults, chunks: list[bytes], connection: int = 1) -> tuple[bytes, list[Pause | Cut]]:
    """The bytes that pass, and the faults, when bytes arrive in these chunks."""
    schedule = FaultSchedule(faults, connection, "connector")
    passed, found = b"", []
    for chunk in chunks:
        for piece in schedule.pieces(chunk):
            if isinstance(piece, bytes):
                passed += piece
            else:
                found.append(piece)
            if isinstance(piece, Cut):
                return passed, found
    return passed, found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, len(DATA) - 1), unique=True).map(sorted), st.integers(0, 20))
def test_the_places_depend_on_the_seed_and_not_on_how_the_bytes_arrive(edges: list[int], seed: int) -> None:
    faults = Faults(stutter=1.0, stutter_bytes=300, cut=1500, split=7, seed=seed)
    chunks = [DATA[begin:end] for begin, end in zip([0, *edges], [*edges, len(DATA)], strict=True)]

    passed, found = faults_of(faults, chunks)

    assert (passed, found) == faults_of(faults, [DATA])
    assert DATA.startswith(passed)
    assert not found or all(place.offset <= len(passed) for place in found)


def test_another_seed_and_another_connection_have_other_places() -> None:
    cuts = {faults_of(Faults(cut=1000, seed=seed), [DATA], connection)[0] for seed in (1, 2) for connection in (1, 2)}

    assert len(cuts) == 4


def test_the_places_of_one_fault_do_not_depend_on_another_fault() -> None:
    alone, _ = faults_of(Faults(cut=1000, seed=3), [DATA])
    together, _ = faults_of(Faults(cut=1000, seed=3, split=5, stutter=1.0), [DATA])

    assert alone == together


def test_split_pieces_have_at_most_that_many_bytes() -> None:
    pieces = list(FaultSchedule(Faults(split=3), 1, "worker").pieces(DATA))

    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == DATA
    assert {len(piece) for piece in pieces if isinstance(piece, bytes)} == {1, 2, 3}


@pytest.mark.parametrize("wrong", [{"delay": -1.0}, {"cut": -1}, {"stutter_bytes": 0}])
def test_a_fault_below_zero_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Faults(**wrong)  # type: ignore[arg-type]  # refused
