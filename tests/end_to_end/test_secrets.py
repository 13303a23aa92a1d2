"""A driver's plans, pages, logs, progress, errors and records in Redis contain no secret."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from wallaroo_spark.registry import EmbeddedRedis

pytestmark = pytest.mark.spark

GIVEN = {"COOKIE": "c00kie/of the fl33t", "TOKEN": "t0ken+of-the-fl33t"}
SECONDS = 300


def forms(secret: str) -> set[str]:
    """The ways in which a text may be written."""
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode()[:-4]}


def test_no_secret_is_in_anything_that_spark_or_redis_shows(tmp_path: Path) -> None:
    with EmbeddedRedis() as redis, (tmp_path / "driver.log").open("wb") as log:
        environment = os.environ | GIVEN | {"REGISTRY": redis.url}
        command = [sys.executable, "-m", "tests.receiver.shown", str(tmp_path)]
        ended = subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=SECONDS, check=False)
    shown = {path: path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    assert ended.returncode == 0, shown[tmp_path / "driver.log"][-5000:]
    secrets: dict[str, str] = json.loads(shown.pop(tmp_path / "secrets.json"))

    assert len(secrets) == len(set(secrets.values()) - {""}) == 5
    pages = [text for path, text in shown.items() if "-page-" in path.name]
    assert [kind for kind in ("wallaroo", "shown given") if not any(kind in page for page in pages)] == []
    found = {
        f"{name} in {path.relative_to(tmp_path)}"
        for name, secret in secrets.items()
        for path, text in shown.items()
        if any(form in text for form in forms(secret))
    }
    assert found == set()
