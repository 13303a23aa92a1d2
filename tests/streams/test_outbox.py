"""The messages of a batch for one gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.streams.application import ApplicationFiles
from tests.streams.samples import event, rows_of
from wallaroo_spark.pipelines.controller.messages.instructions import AnswerRequest, DeliverRecords
from wallaroo_spark.pipelines.controller.messages.values import GroupDelivery, ReplyTo
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.rows import OutputKind


def test_a_gateway_reads_its_messages_of_a_batch_in_order(tmp_path: Path) -> None:
    app = ApplicationFiles(tmp_path / "application")
    answer = AnswerRequest(ReplyTo("g0", 1, 7))
    delivery = DeliverRecords("g0.1.1", GroupDelivery("bill", 3), 1, 2)
    mine: list[dict[str, Any]] = [
        {"instruction": encode(answer), "records": None},
        {"instruction": encode(delivery), "records": encode((event(1), event(2)))},
    ]
    others = [{"instruction": encode(AnswerRequest(ReplyTo("g1", 1, 8))), "records": None}]
    app.commit(rows_of(OutputKind.OUTBOX, mine, target="g0"), rows_of(OutputKind.OUTBOX, others, target="g1"))
    app.commit()

    reader = BatchOutputs(app.location)
    assert reader.messages(0, "g0") == [(answer, None), (delivery, (event(1), event(2)))]
    others_of = ((0, "g1"), (0, "g2"), (1, "g0"), (9, "g0"))
    assert [len(reader.messages(batch, gateway)) for batch, gateway in others_of] == [1, 0, 0, 0]
