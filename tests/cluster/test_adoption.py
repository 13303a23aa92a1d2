"""An executor dies while the receiver adopts a query that Spark's own ``.start()`` began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import dying_adoption
from tests.cluster.conftest import Submit
from tests.conftest import ROOT
from wallaroo_spark.registry import EmbeddedRedis


@pytest.mark.long
def test_an_executor_that_dies_during_the_adoption_loses_nothing(
    submit: Submit, own_redis: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALLAROO_REGISTRY", own_redis.url)
    ended = submit(Path(dying_adoption.__file__), str(tmp_path), properties=ROOT / "conf" / "standalone.conf")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["acknowledged"] == [dying_adoption.MESSAGES] * 4
    wanted = [[f"s{number}", id_] for number in range(4) for id_ in range(1, dying_adoption.MESSAGES + 1)]
    assert found["rows"] == wanted
