"""One call of a stage's function, without an application: the rows are made, and the result is read, as in Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.client import Event
from wallaroo_spark.client.events import decode_value, encode_value
from wallaroo_spark.engine.operator.functions import StageFunction, call_function
from wallaroo_spark.errors import ArgumentValueError
from wallaroo_spark.gateway.cloud_events import event_of, to_wire
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.pipelines.controller.messages.events import DeliveryAcked, DeliveryNacked
from wallaroo_spark.pipelines.controller.messages.instructions import RunFunction
from wallaroo_spark.pipelines.controller.messages.values import StageDelivery
from wallaroo_spark.pipelines.schema.cloud_event import Payload


@dataclass(frozen=True)
class FunctionResult:
    """What a function has given for one row."""

    output: Any
    """The output as the next stage is given it: a JSON value, a str or bytes; None for none."""
    streams: Mapping[str, list[Event]]
    """The events for each stream output, by the stream's name."""
    problem: str
    """Why the row failed, as the history would have it; empty when it did not."""


def run_function(
    function: StageFunction,
    events: Sequence[Event],
    outputs: Mapping[str, Sequence[Any]] | None = None,
    streams: Sequence[str] = (),
    *,
    pipeline: str = "test/pipeline",
    output_required: bool = True,
) -> list[FunctionResult]:
    """Call a function of a stage as Spark does, once with a row for each event, and return a result for each row.

    ``outputs`` has a value for each event from each stage of ``dependencies``: bytes, a str or a JSON value, and None
    where that stage had no output. ``streams`` are the declared ``streamOutputs``. If the call as a whole fails, the
    function is called for each row alone. ``output_required``: whether a stage depends on this one.

    Raises :class:`ArgumentValueError` when there are more or fewer outputs of a stage than events.
    """
    outputs = outputs or {}
    for stage, values in outputs.items():
        if len(values) != len(events):
            raise ArgumentValueError(
                f"there are {len(values)} outputs of stage {stage} for {len(events)} events; give one for each event",
                code="columns-uneven",
                argument="outputs",
            )
    name = f"{function.__module__}:{getattr(function, '__qualname__', function)}"
    namespace = pipeline.partition("/")[0]
    targets = tuple((stream if "/" in stream else f"{namespace}/{stream}", 1) for stream in streams)
    runs = [
        RunFunction(
            StageDelivery(pipeline, number, "stage", number),
            name,
            event_of(event.to_message("/test"), GatewayLimits()),
            tuple((stage, _payload(values[place])) for stage, values in outputs.items() if values[place] is not None),
            targets,
            tuple(outputs),
            output_required,
        )
        for place, (number, event) in enumerate(zip(range(1, len(events) + 1), events, strict=True))
    ]
    names = dict(zip((stream for stream, _ in targets), streams, strict=True))
    return [_result(one, names) for one in call_function(function, runs)]


def _payload(value: Any) -> Payload:
    data, content_type = encode_value(value)
    return Payload(data, content_type)


def _result(given: Any, names: Mapping[str, str]) -> FunctionResult:
    if isinstance(given, DeliveryNacked):
        return FunctionResult(None, {}, given.reason)
    assert isinstance(given, DeliveryAcked)
    streams: dict[str, list[Event]] = {name: [] for name in names.values()}
    for one in given.stream_outputs:
        streams[names[one.target.stream]] += [Event.from_message(to_wire(record)) for record in one.records]
    output = None if given.output is None else decode_value(given.output.data, given.output.content_type)
    return FunctionResult(output, streams, "")
