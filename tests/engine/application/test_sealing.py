"""The end of a batch: the folder is still this driver's, the manifest is written, and all of it is on the disk."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from wallaroo_spark.engine.application import query
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.streams.batch_outputs import BatchOutputs


class NoRows:
    """A batch without outputs."""

    def mapInArrow(self, *_: Any) -> Any:  # the name is Spark's
        return types.SimpleNamespace(collect=list)


def test_the_file_system_is_synced_when_the_manifest_is_there_and_before_spark_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, seen = BatchOutputs(str(tmp_path)), []
    monkeypatch.setattr(query, "sync_file_system", lambda path: seen.append((path, outputs.sealed())))

    query.sealing(outputs, str(tmp_path), synced="/the/checkpoint")(NoRows(), 0)
    assert seen == [("/the/checkpoint", [0])]
    query.sealing(outputs, str(tmp_path))(NoRows(), 1)
    assert len(seen) == 1


def test_a_batch_is_not_sealed_in_a_folder_that_has_become_another_drivers(tmp_path: Path) -> None:
    outputs = BatchOutputs(str(tmp_path))

    def moved() -> None:
        raise ConfigurationError("the folder was moved", code="folder-replaced")

    with pytest.raises(ConfigurationError, match="the folder was moved"):
        query.sealing(outputs, str(tmp_path), moved)(NoRows(), 0)
    assert outputs.sealed() == []
