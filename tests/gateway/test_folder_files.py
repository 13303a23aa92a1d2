"""The files of an application's folder as a gateway has them."""

from __future__ import annotations

import json
from pathlib import Path

from wallaroo_spark.engine.source.plan import InputOffset
from wallaroo_spark.gateway.files import FolderFiles
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.streams.inbox import InboxPosition

KEY = PartitionKey("shop/orders", 0)


def test_a_gateway_learns_from_the_checkpoint_how_far_its_generation_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint" / "offsets"
    folder.mkdir(parents=True)

    def planned(batch: int, **positions: InboxPosition) -> None:
        offset = json.dumps(InputOffset(positions, batch, 1_000, 1).to_json())
        (folder / str(batch)).write_text(f"v1\n{{}}\n{offset}")

    files = FolderFiles(str(tmp_path), "g0")
    assert files.open() == 1
    assert [files.write([(KEY, b"one")]), files.write([(KEY, b"two")])] == [1, 2]
    planned(0, g1=InboxPosition(1, 7))
    planned(1, g0=InboxPosition(1, 2), g1=InboxPosition(1, 9))
    planned(2, g0=InboxPosition(2, 5))
    assert [files.read_to(batch) for batch in range(4)] == [0, 2, 0, 0]
