"""Declarations: values that are valid by themselves."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pipelines.schema.declarations import (
    KINDS,
    EndpointDeclaration,
    NamespaceDeclaration,
    Permission,
    PipelineDeclaration,
    RetryPolicy,
    ScheduleDeclaration,
    StageDeclaration,
    StartPoint,
    StreamDeclaration,
    TokenDeclaration,
)
from wallaroo_spark.pipelines.schema.fields import declared_rows
from wallaroo_spark.pipelines.schema.names import ObjectKey

FULFIL = PipelineDeclaration(
    name="fulfil",
    namespace="shop",
    input_stream="orders",
    triggers=("shop.order.created",),
    start_point=StartPoint(location="beginning"),
    stages=(
        StageDeclaration(name="charge"),
        StageDeclaration(name="reserve", run="shop.stock:reserve"),
        StageDeclaration(
            name="ship", dependencies=("root_event", "charge", "reserve"), stream_outputs=("shipments", "log/all")
        ),
        StageDeclaration(name="tidy", after=("ship",)),
    ),
)


def test_the_stages_of_a_pipeline_know_their_order() -> None:
    assert [stage.name for stage in FULFIL.stages if stage.is_entry] == ["charge", "reserve"]
    assert FULFIL.stage("ship").predecessors == {"charge", "reserve"}
    assert FULFIL.stage("tidy").predecessors == {"ship"}
    assert StageDeclaration(name="a", dependencies=("root_event",)).is_entry
    with pytest.raises(KeyError):
        FULFIL.stage("none")


def test_an_output_is_required_exactly_where_another_stage_depends_on_it() -> None:
    assert [stage.name for stage in FULFIL.stages if FULFIL.output_required(stage)] == ["charge", "reserve"]
    written = StageDeclaration(name="a", output="required"), StageDeclaration(name="b", output="optional")
    pipeline = dataclasses.replace(FULFIL, stages=written)
    assert [pipeline.output_required(stage) for stage in pipeline.stages] == [True, False]


def test_objects_are_known_by_kind_namespace_and_name() -> None:
    assert FULFIL.key == ObjectKey("Pipeline", "shop", "fulfil")
    assert FULFIL.input_key == ObjectKey("Stream", "shop", "orders")
    assert FULFIL.stream_output_keys(FULFIL.stage("ship")) == (
        ObjectKey("Stream", "shop", "shipments"),
        ObjectKey("Stream", "log", "all"),
    )
    assert NamespaceDeclaration(name="shop").key == ObjectKey("Namespace", "", "shop")


@pytest.mark.parametrize(
    ("start", "cursor"),
    [
        (StartPoint(location="offset", offset=50), 49),
        (StartPoint(location="offset", offset=1), 0),
        (StartPoint(location="offset", offset=0), 0),
        (StartPoint(location="offset", offset=101), 100),
        (StartPoint(location="offset", offset=500), 100),
        (StartPoint(location="latest"), 100),
        (StartPoint(location="beginning"), 0),
    ],
)
def test_a_start_point_is_clamped_to_the_existing_records(start: StartPoint, cursor: int) -> None:
    assert start.cursor(newest=100) == cursor


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_cursor_is_never_outside_of_the_partition(offset: int, newest: int) -> None:
    assert 0 <= StartPoint(location="offset", offset=offset).cursor(newest) <= newest


@pytest.mark.parametrize(
    ("kind", "values", "problem"),
    [
        (NamespaceDeclaration, {"name": "a b"}, "name: the name 'a b' has ' '"),
        (StreamDeclaration, {"name": "s", "namespace": ""}, "namespace: the name is empty"),
        (StreamDeclaration, {"name": "s", "namespace": "n", "partitions": 0}, "partitions: 0 is not 1 or more"),
        (StreamDeclaration, {"name": "s", "namespace": "n", "partitions": 1025}, "partitions: 1025 is above 1024"),
        (StreamDeclaration, {"name": "s", "namespace": "n", "partitions": True}, "True is not a whole number"),
        (StreamDeclaration, {"name": "s", "namespace": "n", "ttl": 0.5}, "ttl: 0.5 is not 1 or more"),
        (StartPoint, {"location": "begining"}, "location: 'begining' is not known; did you mean beginning?"),
        (StartPoint, {"location": "offset"}, "location is offset, and offset is missing"),
        (StartPoint, {"location": "latest", "offset": 3}, "offset is 3, and location is latest"),
        (RetryPolicy, {"dead_letter_stream": "dead"}, "deadLetterStream is given without maxAttempts"),
        (StageDeclaration, {"name": "a", "run": "shop.stock"}, "run: 'shop.stock' names no function; write module"),
        (StageDeclaration, {"name": "a", "after": ("b c",)}, "after: the name 'b c' has ' '"),
        (StageDeclaration, {"name": "a", "stream_outputs": ("a/b/c",)}, "streamOutputs: the name 'a/b' has '/'"),
        (
            PipelineDeclaration,
            {"name": "p", "namespace": "n", "input_stream": "s", "stages": ()},
            "stages: there is none; give 1 or more",
        ),
        (
            PipelineDeclaration,
            {
                "name": "p",
                "namespace": "n",
                "input_stream": "s",
                "triggers": ("a..b",),
                "stages": (StageDeclaration(name="a"),),
            },
            "triggers: the pattern 'a..b' has an empty part",
        ),
        (
            EndpointDeclaration,
            {"name": "e", "namespace": "n", "input": "many"},
            "'many' is not known; there are",
        ),
        (
            ScheduleDeclaration,
            {"name": "s", "namespace": "n", "stream": "s", "cron": "0 25 * * *", "type": "t"},
            "cron: '25' is no value of the hour; write *, a number from 0 to 23",
        ),
        (
            ScheduleDeclaration,
            {"name": "s", "namespace": "n", "stream": "s", "cron": "0 2 * * *", "type": "t", "time_zone": "M ars"},
            "timeZone: 'M ars' is not the name of a time zone",
        ),
        (
            ScheduleDeclaration,
            {"name": "s", "namespace": "n", "stream": "s", "cron": "0 2 * * *", "type": ""},
            "type is empty",
        ),
        (
            ScheduleDeclaration,
            {"name": "s", "namespace": "n", "stream": "s", "exchange": "e", "cron": "0 2 * * *", "type": "t"},
            "stream and exchange are both given; give one of them",
        ),
        (
            ScheduleDeclaration,
            {"name": "s", "namespace": "n", "cron": "0 2 * * *", "type": "t"},
            "neither stream nor exchange is given",
        ),
        (
            ScheduleDeclaration,
            {"name": "s", "namespace": "n", "exchange": "a/b/c", "cron": "0 2 * * *", "type": "t"},
            "exchange: the name 'a/b' has '/'",
        ),
        (Permission, {"access": "all", "name": "orders"}, "name is 'orders', and namespace is missing"),
        (TokenDeclaration, {"name": "t", "permissions": ()}, "permissions: there is none; give 1 or more"),
    ],
)
def test_a_declaration_with_a_mistake_does_not_exist(kind: Any, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(**values)

    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("permission", "publish", "subscribe"),
    [
        (Permission(access="all"), True, True),
        (Permission(access="publish", kind="Stream", namespace="shop", name="orders"), True, False),
        (Permission(access="subscribe", namespace="shop"), False, True),
        (Permission(access="all", namespace="store"), False, False),
        (Permission(access="all", kind="Endpoint"), False, False),
        (Permission(access="all", namespace="shop", name="order"), False, False),
    ],
)
def test_a_permission_is_for_an_access_and_for_objects(permission: Permission, publish: bool, subscribe: bool) -> None:
    key = ObjectKey("Stream", "shop", "orders")

    assert (permission.permits("publish", key), permission.permits("subscribe", key)) == (publish, subscribe)


def test_declarations_travel_between_processes_and_are_keys_of_sets() -> None:
    assert pickle.loads(pickle.dumps(FULFIL)) == FULFIL
    assert len({FULFIL, dataclasses.replace(FULFIL)}) == 1


def test_each_field_has_a_name_for_documents_and_a_help() -> None:
    rows = [row for table in (*KINDS.values(), StageDeclaration, StartPoint) for row in declared_rows(table)]

    assert {"inputStream", "maxParallel", "streamOutputs", "startPoint", "idempotencyWindow"} <= {r.name for r in rows}
    assert [row.name for row in rows if not row.help.endswith(".")] == []
