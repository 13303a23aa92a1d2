"""Functions of stages, run on whole batches as pandas DataFrames.

A function is given one row for each delivery and returns one row for each of them, with the index of the rows that it
was given. Source: ``docs/pipelines/engine.md#functions-of-stages``.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from wallaroo_spark.engine.operator.function_values import (
    ResultError,
    events_of,
    given_event,
    given_payload,
    payload_of,
)
from wallaroo_spark.errors import one_line
from wallaroo_spark.pipelines.controller.messages.events import DeliveryAcked, DeliveryNacked, Event
from wallaroo_spark.pipelines.controller.messages.instructions import RunFunction
from wallaroo_spark.pipelines.controller.messages.values import IN_SPARK, StreamOutput
from wallaroo_spark.pipelines.names import ROOT_EVENT

log = one_line(logging.getLogger("wallaroo_spark.engine"))

INSTANCE = "instance"
"""The column with the number of the instance."""
OUTPUT = "output"
"""The column of a result with the output of the stage."""
CONTENT_TYPE = "content_type"
"""The column of a result with the content type of the output; it may be left out."""
SHORTEST_DELAY = 1
"""Milliseconds before a failed delivery is tried again, at least: not in this turn, which would never end."""
LONGEST_REASON = 1000
"""The most characters of a reason; it becomes a part of the history. A choice."""

StageFunction = Callable[[pd.DataFrame], Any]
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
    except (Exception, SystemExit) as error:
        return _shown(error)
    return ""


def import_problem(name: str) -> str:
    """As :func:`import_error`, as a sentence with the way out."""
    error = import_error(name)
    return error and (
        f"function {name} cannot be imported: {error}; install its package on the driver and the executors, or correct "
        "`run` of the stage"
    )


class StageFunctions:
    """Runs the functions of a task's turns."""

    def run(self, runs: Sequence[RunFunction], now: int) -> Sequence[Event]:
        """The results: one DeliveryAcked or DeliveryNacked for each run, in the same order.

        A function is called once for all deliveries of a stage. If it raises, or if its result as a whole cannot be
        used, it is called for each row alone, so only the deliveries of bad rows fail. A failed delivery is a nack with
        the reason, so the retry policy of the stage applies.
        """
        stages: dict[tuple[str, str, str], list[int]] = {}
        for place, run in enumerate(runs):
            stages.setdefault((run.delivery.pipeline, run.delivery.stage, run.function), []).append(place)
        results: list[Event | None] = [None] * len(runs)
        for places in stages.values():
            for place, result in zip(places, _results([runs[place] for place in places]), strict=True):
                results[place] = result
        return [result for result in results if result is not None]


def _results(runs: Sequence[RunFunction]) -> list[Event]:
    """The results of the runs of one stage."""
    name = runs[0].function
    if problem := import_problem(name):
        log.error("stage %s: %s", _stage(runs[0]), problem)
        return [_nack(run, problem) for run in runs]
    return call_function(_loaded[name], runs)


def call_function(function: StageFunction, runs: Sequence[RunFunction]) -> list[Event]:
    """The results of the runs of one stage: one DeliveryAcked or DeliveryNacked for each, in the same order."""
    given: dict[int, dict[str, Any]] = {}
    failed: dict[int, str] = {}
    for place, run in enumerate(runs):
        try:
            given[place] = _row(run)
        except ValueError as error:
            failed[place] = f"an input cannot be read: {_shown(error)}"
    acked = _call(function, runs, given, failed) if given else {}
    if failed:
        first = next(iter(failed.values()))
        log.warning(
            "function %s of stage %s failed for %s of %s rows: %s",
            runs[0].function,
            _stage(runs[0]),
            len(failed),
            len(runs),
            first,
        )
    return [acked[place] if place in acked else _nack(run, failed[place]) for place, run in enumerate(runs)]


def _call(
    function: StageFunction, runs: Sequence[RunFunction], given: dict[int, dict[str, Any]], failed: dict[int, str]
) -> dict[int, DeliveryAcked]:
    """Call a function for all rows, and again for each row if that fails. Returns the acks by the place of the run."""
    frame = _frame(runs[0], given)
    try:
        return _acks(runs, frame.index, function(frame), failed)
    except Exception as error:
        if len(given) == 1:
            failed[frame.index[0]] = _shown(error)
            return {}
    found: dict[int, DeliveryAcked] = {}
    for row, place in enumerate(given):
        try:
            alone = frame.iloc[[row]].copy()
            found.update(_acks(runs, alone.index, function(alone), failed))
        except Exception as error:
            failed[place] = _shown(error)
    return found


def _frame(run: RunFunction, given: dict[int, dict[str, Any]]) -> pd.DataFrame:
    """The rows by the place of their run. The values stay as they are: an output that is absent is None."""
    names = (*((ROOT_EVENT,) if run.root is not None else ()), *run.dependencies)
    columns: dict[str, Any] = {INSTANCE: [row[INSTANCE] for row in given.values()]}
    for name in names:
        columns[name] = pd.Series([row.get(name) for row in given.values()], [*given], dtype=object)
    return pd.DataFrame(columns, index=[*given])


def _row(run: RunFunction) -> dict[str, Any]:
    """The row of a delivery. Raises ValueError for an input that is not as its content type says."""
    row: dict[str, Any] = {INSTANCE: run.delivery.instance}
    if run.root is not None:
        row[ROOT_EVENT] = given_event(run.root)
    for name, payload in run.outputs:
        row[name] = given_payload(payload)
    return row


def _acks(
    runs: Sequence[RunFunction], index: pd.Index[Any], result: Any, failed: dict[int, str]
) -> dict[int, DeliveryAcked]:
    """The acks of a result. Raises :class:`ResultError` for a result that cannot be used as a whole."""
    columns = _result_columns(index, result)
    outputs = columns.pop(OUTPUT, None)
    types = columns.pop(CONTENT_TYPE, None)
    targets = _target_columns(runs[index[0]], columns)
    found: dict[int, DeliveryAcked] = {}
    for at, place in enumerate(index):
        run = runs[place]
        try:
            kind = None if types is None else types[at]
            output = None if outputs is None else payload_of(outputs[at], kind)
            if output is None and run.output_required:
                raise ResultError("another stage needs the output of this one, and the function returned none")
            streams: list[StreamOutput] = []
            for stream, partitions, values in targets:
                streams += events_of(run.delivery, run.partition, stream, partitions, values[at])
        except Exception as error:
            failed[place] = _shown(error)
        else:
            found[place] = DeliveryAcked(None, IN_SPARK, run.delivery, output, tuple(streams))
    return found


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
    return DeliveryNacked(None, IN_SPARK, run.delivery, SHORTEST_DELAY, reason[:LONGEST_REASON])


def _stage(run: RunFunction) -> str:
    return f"{run.delivery.pipeline}/{run.delivery.stage}"


def _shown(error: BaseException) -> str:
    return str(error) if isinstance(error, ResultError) else f"{type(error).__name__}: {error}"
