"""Functions of stages, run on whole batches as pandas DataFrames, and the values that they are given and return.

A function is given one row for each delivery and returns one row for each of them, with the index of the rows that it
was given. Source: ``docs/pipelines/in-spark.md#functions-of-stages``.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from wallaroo_spark.errors import LONGEST_REASON, bounded_reason, one_line, shown_error
from wallaroo_spark.json_text import dump_json, load_json
from wallaroo_spark.pipelines.controller.messages.events import DeliveryAcked, DeliveryNacked, Event
from wallaroo_spark.pipelines.controller.messages.instructions import RunFunction
from wallaroo_spark.pipelines.controller.messages.values import IN_SPARK, PartitionKey, StageDelivery, StreamOutput
from wallaroo_spark.pipelines.schema.cloud_event import (
    CloudEvent,
    EventProblem,
    Payload,
    attribute_text,
    exact_text,
    partition_of,
    valid_event,
    valid_output,
)
from wallaroo_spark.pipelines.schema.names import ROOT_EVENT

JSON = "application/json"
TEXT = "text/plain"
_REQUIRED = ("id", "source", "type")


class ResultError(Exception):
    """A result of a function that cannot be used; it becomes the reason of a nack."""


def given_event(event: CloudEvent) -> dict[str, Any]:
    """An event as a function is given it: a dict of its attributes and ``data``.

    Raises ValueError when the data is not of its ``datacontenttype``.
    """
    found: dict[str, Any] = {"id": event.id, "source": event.source, "type": event.type}
    found.update(event.attributes)
    found["data"] = None if event.data is None else _decoded(event.data, found.get("datacontenttype", ""))
    return found


def _decoded(data: bytes, content_type: str) -> Any:
    """JSON as its value, text as str, all else as bytes."""
    if not content_type:
        return data
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON or kind.endswith("+json"):
        return load_json(data)
    return data.decode() if kind.startswith("text/") else data


def is_absent(value: Any) -> bool:
    """Whether a value of a result stands for none: None, NaN, NaT or NA."""
    if value is None:
        return True
    return (isinstance(value, float) and value != value) or type(value).__name__ in ("NaTType", "NAType")


def payload_of(value: Any, content_type: Any) -> Payload | None:
    """The output that a function returned.

    Raises :class:`ResultError` for one that no client could receive, and ValueError or TypeError for a value that is
    not one of JSON.
    """
    if is_absent(value):
        return None
    data, kind = _encoded(value)
    try:
        return valid_output(Payload(data, kind if is_absent(content_type) else _text(content_type)))
    except EventProblem as problem:
        raise ResultError(f"the output {problem}") from None


def _encoded(value: Any) -> tuple[bytes, str]:
    """The bytes of a value, and the content type that it has by itself."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), ""
    if isinstance(value, str):
        return _text(value).encode(), TEXT
    return dump_json(value, _plain), JSON


def _text(value: Any) -> str:
    return exact_text(value if isinstance(value, str) else str(value))


def _plain(value: Any) -> Any:
    """A value of numpy as one of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no value of JSON")


def events_of(delivery: StageDelivery, partition: int, stream: str, partitions: int, value: Any) -> list[StreamOutput]:
    """The stream outputs of one row for one stream: one for each partition, and an empty one if there is no event.

    ``partition`` is that of the instance. An event without an id gets one that is the same when the function runs
    again.
    """
    by_partition: dict[int, list[CloudEvent]] = {}
    if not is_absent(value):
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list | tuple):
            raise ResultError(
                f"the events for stream {stream} are a {type(value).__name__}; return a list of dicts, one for each "
                "event"
            )
        for number, one in enumerate(value):
            event = _event(delivery, partition, stream, number, one)
            by_partition.setdefault(partition_of(event, partitions), []).append(event)
    outputs = sorted(by_partition.items()) or [(0, [])]
    return [StreamOutput(PartitionKey(stream, partition), tuple(events)) for partition, events in outputs]


def _event(delivery: StageDelivery, partition: int, stream: str, number: int, value: Any) -> CloudEvent:
    if not isinstance(value, dict):
        raise ResultError(
            f"an event for stream {stream} is a {type(value).__name__}; return a dict with the attributes of the event "
            "and its data"
        )
    given = {_text(name): one for name, one in value.items()}
    given.pop("specversion", None)
    instance = f"{partition}/{delivery.instance}"
    given.setdefault("id", f"{delivery.pipeline}@{delivery.birth}:{instance}:{delivery.stage}:{stream}:{number}")
    given.setdefault("source", delivery.pipeline)
    for name in _REQUIRED:
        if not isinstance(given.get(name), str) or not given[name]:
            raise ResultError(f"an event for stream {stream} has no {name}; give it, as a text")
    name, source, kind_of_event = (_text(given.pop(name)) for name in _REQUIRED)
    data, kind = given.pop("data", None), ""
    if data is not None:
        data, kind = _encoded(data)
    if kind and "datacontenttype" not in given:
        given["datacontenttype"] = kind
    try:
        attributes = tuple((name, _attribute(one)) for name, one in given.items() if not is_absent(one))
        return valid_event(CloudEvent(name, source, kind_of_event, data, attributes))
    except EventProblem as problem:
        raise ResultError(f"an event for stream {stream} {problem}") from None


def _attribute(value: Any) -> str:
    return attribute_text(_plain(value) if hasattr(value, "dtype") else value)


log = one_line(logging.getLogger("wallaroo_spark.engine"))

INSTANCE = "instance"
"""The column with the number of the instance."""
OUTPUT = "output"
"""The column of a result with the output of the stage."""
CONTENT_TYPE = "content_type"
"""The column of a result with the content type of the output; it may be left out."""
SHORTEST_DELAY = 1
"""Milliseconds before a failed delivery is tried again, at least: not in this turn, which would never end."""

StageFunction = Callable[[pd.DataFrame], Any]
Passing = tuple[type[BaseException], ...]
_loaded: dict[str, StageFunction] = {}
"""The functions of this process, by ``package.module:function``."""


def load_function(name: str) -> StageFunction:
    """Import ``package.module:function``, once for each process.

    Raises :class:`ImportError` when there is no such function, and any error that the module raises.
    """
    found = _loaded.get(name)
    if found is None:
        module, _, path = name.partition(":")
        thing: Any = importlib.import_module(module)
        for part in path.split("."):
            thing = getattr(thing, part, None)
        if not callable(thing):
            raise ImportError(f"module {module} has no function {path}")
        found = _loaded[name] = thing
    return found


def import_error(name: str) -> str:
    """Why this process cannot import a function; empty when it can. Nothing that its module raises passes through."""
    try:
        load_function(name)
    except BaseException as error:
        return _shown(error)
    return ""


def import_problem(name: str) -> str:
    """As :func:`import_error`, as a sentence with the remedy."""
    error = import_error(name)
    return error and (
        f"function {name} cannot be imported: {error}; install its package on the driver and the executors, or correct "
        "`run` of the stage"
    )


class StageFunctions:
    """Runs the functions of a task's turns.

    Nothing that a function raises or returns passes through, except the errors of ``passing``: a Ctrl-C, where the
    functions run in the process of a test.
    """

    def __init__(self, passing: Passing = (KeyboardInterrupt,)) -> None:
        self._passing = passing

    def run(self, runs: Sequence[RunFunction], now: int) -> Sequence[Event]:
        """The results: one DeliveryAcked or DeliveryNacked for each run, in the same order.

        A function is called once for all deliveries of a stage. If it raises, or if its result as a whole cannot be
        used, it is called for each row alone, so only the deliveries of bad rows fail. A failed delivery is a nack with
        the reason, so the retry policy of the stage applies.
        """
        stages: dict[tuple[str, str, str], list[int]] = {}
        for place, run in enumerate(runs):
            stages.setdefault((run.delivery.pipeline, run.delivery.stage, run.function), []).append(place)
        results: dict[int, Event] = {}
        for places in stages.values():
            results.update(zip(places, self._results([runs[place] for place in places]), strict=True))
        return [results[place] for place in range(len(runs))]

    def _results(self, runs: Sequence[RunFunction]) -> list[Event]:
        """The results of the runs of one stage."""
        name = runs[0].function
        if problem := import_problem(name):
            log.error("stage %s: %s", _stage(runs[0]), problem)
            return [_nack(run, problem) for run in runs]
        return call_function(_loaded[name], runs, self._passing)


def call_function(
    function: StageFunction, runs: Sequence[RunFunction], passing: Passing = (KeyboardInterrupt,)
) -> list[Event]:
    """The results of the runs of one stage: one DeliveryAcked or DeliveryNacked for each, in the same order."""
    call = _FunctionCall(function, runs, passing)
    call.rows(range(len(runs)))
    if call.failed:
        first = next(iter(call.failed.values()))
        log.warning(
            "function %s of stage %s failed for %s of %s rows: %s",
            runs[0].function,
            _stage(runs[0]),
            len(call.failed),
            len(runs),
            first,
        )
    return [
        call.acked[place] if place in call.acked else _nack(run, call.failed[place]) for place, run in enumerate(runs)
    ]


class _FunctionCall:
    """The call of a function for some runs, which are named by their places."""

    def __init__(self, function: StageFunction, runs: Sequence[RunFunction], passing: Passing) -> None:
        self._function = function
        self._runs = runs
        self._passing = passing
        self.acked: dict[int, DeliveryAcked] = {}
        self.failed: dict[int, str] = {}

    def rows(self, places: Sequence[int]) -> None:
        """Call the function for all rows, and again for each row if that fails.

        Each call is given values of its own, decoded anew: a function may change what it is given.
        """
        given = self._given(places)
        if not given:
            return
        index = pd.Index([*given])
        try:
            self._take(index, self._function(_frame(self._runs[0], given)))
        except self._passing:
            raise
        except BaseException as error:
            if len(given) == 1:
                self.failed[index[0]] = _shown(error)
            else:
                for place in index.tolist():
                    self.rows([place])

    def _given(self, places: Sequence[int]) -> dict[int, dict[str, Any]]:
        given: dict[int, dict[str, Any]] = {}
        for place in places:
            try:
                given[place] = _row(self._runs[place])
            except Exception as error:
                self.failed[place] = f"an input cannot be read: {_shown(error)}"
        return given

    def _take(self, index: pd.Index[Any], result: Any) -> None:
        """Take a result. Raises :class:`ResultError` for one that cannot be used as a whole."""
        columns = _result_columns(index, result)
        outputs = columns.pop(OUTPUT, None)
        types = columns.pop(CONTENT_TYPE, None)
        targets = _target_columns(self._runs[index[0]], columns)
        for at, place in enumerate(index.tolist()):
            run = self._runs[place]
            try:
                kind = None if types is None else types[at]
                output = None if outputs is None else payload_of(outputs[at], kind)
                if output is None and run.output_required:
                    raise ResultError("another stage needs the output of this one, and the function returned none")
                streams: list[StreamOutput] = []
                for stream, partitions, values in targets:
                    streams += events_of(run.delivery, run.partition, stream, partitions, values[at])
            except self._passing:
                raise
            except BaseException as error:
                self.failed[place] = _shown(error)
            else:
                self.acked[place] = DeliveryAcked(None, IN_SPARK, run.delivery, output, tuple(streams))


def _frame(run: RunFunction, given: dict[int, dict[str, Any]]) -> pd.DataFrame:
    """The rows by the place of their run. The values stay as they are: an output that is absent is None."""
    names = (*((ROOT_EVENT,) if run.root is not None else ()), *run.dependencies)
    columns: dict[str, Any] = {INSTANCE: [row[INSTANCE] for row in given.values()]}
    for name in names:
        columns[name] = pd.Series([row.get(name) for row in given.values()], [*given], dtype=object)
    return pd.DataFrame(columns, index=[*given])


def _row(run: RunFunction) -> dict[str, Any]:
    """The row of a delivery, of new values. Raises ValueError for an input that is not as its content type says."""
    row: dict[str, Any] = {INSTANCE: run.delivery.instance}
    if run.root is not None:
        row[ROOT_EVENT] = given_event(run.root)
    for name, payload in run.outputs:
        row[name] = _decoded(payload.data, payload.content_type)
    return row


def _result_columns(index: pd.Index[Any], result: Any) -> dict[str, list[Any]]:
    """The columns of a result as lists, in the order of the given rows."""
    if result is None:
        return {}
    if isinstance(result, pd.Series):
        result = result.to_frame(OUTPUT)
    if not isinstance(result, pd.DataFrame):
        raise ResultError(
            f"the function returned a {type(result).__name__}; return a pandas DataFrame, a Series with the outputs, "
            "or None for no output"
        )
    if not result.index.equals(index):
        if len(result) != len(index) or not result.index.is_unique or not index.isin(result.index).all():
            raise ResultError(
                f"the function was given {len(index)} rows and returned {len(result)} rows with another index; return "
                "one row for each given one, with its index"
            )
        result = result.loc[index]
    return {str(name): result.iloc[:, place].tolist() for place, name in enumerate(result.columns)}


def _target_columns(run: RunFunction, columns: dict[str, list[Any]]) -> list[tuple[str, int, list[Any]]]:
    """The column of each stream output: it has the stream's full name, or its name in the pipeline's namespace."""
    namespace = run.delivery.pipeline.partition("/")[0]
    found = []
    for stream, partitions in run.targets:
        name = stream if stream in columns else stream.removeprefix(f"{namespace}/")
        if name not in columns:
            raise ResultError(
                f"the result has no column {name!r} for the declared stream output {stream}; return one, with None or "
                "an empty list in rows without an event"
            )
        found.append((stream, partitions, columns.pop(name)))
    if columns:
        names: Iterable[str] = (OUTPUT, CONTENT_TYPE, *(stream for stream, _ in run.targets))
        raise ResultError(
            f"the result has a column {next(iter(columns))!r}, which is no output of stage {run.delivery.stage}; "
            f"the columns are {', '.join(names)}"
        )
    return found


def _nack(run: RunFunction, reason: str) -> DeliveryNacked:
    return DeliveryNacked(None, IN_SPARK, run.delivery, SHORTEST_DELAY, bounded_reason(reason))


def _stage(run: RunFunction) -> str:
    return f"{run.delivery.pipeline}/{run.delivery.stage}"


def _shown(error: BaseException) -> str:
    text = shown_error(error, LONGEST_REASON)
    return text.removeprefix(f"{ResultError.__name__}: ") if isinstance(error, ResultError) else text
