"""The clients' own test suites at the Kafka door, with the list of what cannot pass there, and why."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path

import pytest

from tests.doors.kafka.suites.programs import PORT, SUITES
from tests.doors.kafka.suites.readable import readable

EXPECTED = tomllib.loads(Path(__file__).with_name("expected.toml").read_text())


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("suite", SUITES)
def test_a_clients_own_suite_passes_but_for_what_a_door_does_not_offer(suite: str) -> None:
    cannot = list(itertools.chain.from_iterable(EXPECTED[suite]["cannot"].values()))
    with readable(PORT, kafka_nodes=5, memory_budget=1 << 30) as committed:
        found = SUITES[suite](committed.away)([*EXPECTED[suite]["passes"], *cannot])
    assert {name for name, passed in found.items() if not passed} == set(cannot)
    assert found.keys() == {*EXPECTED[suite]["passes"], *cannot}
