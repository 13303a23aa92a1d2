"""Documents as declarations: each problem with its line and column, and all of them at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.schema.samples import SHOP, pipeline, schedule
from wallaroo_spark.pipelines.schema.declarations import (
    KINDS,
    Declaration,
    PipelineDeclaration,
    RetryPolicy,
    StageDeclaration,
    StartPoint,
    StreamDeclaration,
)
from wallaroo_spark.pipelines.schema.documents import Problems, from_stored, read_declarations, to_document
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.validation import cycles, distinct, validate
from wallaroo_spark.yaml_reader import documents_of


def problems_of(text: str) -> list[str]:
    """All problems of one file, without the file's name."""
    problems = Problems()
    given = distinct(read_declarations(documents_of(text, "f"), problems), problems)
    if not problems.found:
        validate({key: placed.declaration for key, placed in given.items()}, given, problems)
    return [error.message.removeprefix("f, ") for error in problems.ordered()]


def declared(text: str) -> dict[ObjectKey, Declaration]:
    problems = Problems()
    found = read_declarations(documents_of(text, "f"), problems)
    assert problems.found == []
    return {placed.key: placed.declaration for placed in found}


def test_the_documents_of_an_application_are_read() -> None:
    found = declared(SHOP)

    assert problems_of(SHOP) == []
    assert {key.kind for key in found} == set(KINDS)
    stream = found[ObjectKey("Stream", "shop", "orders")]
    assert stream == StreamDeclaration(name="orders", namespace="shop", partitions=2, ttl=604_800.0)
    fulfil = found[ObjectKey("Pipeline", "shop", "fulfil")]
    assert isinstance(fulfil, PipelineDeclaration)
    assert fulfil.start_point == StartPoint(location="beginning")
    assert fulfil.stage("ship") == StageDeclaration(
        name="ship",
        dependencies=("root_event", "charge", "reserve"),
        stream_outputs=("shipments",),
        retry=RetryPolicy(max_attempts=5, dead_letter_stream="shipments"),
    )


def test_a_declaration_is_the_same_after_it_was_stored() -> None:
    for declaration in declared(SHOP).values():
        assert from_stored(to_document(declaration), "stored") == declaration
        assert from_stored(to_document(declaration, defaults=True), "stored") == declaration


NAMES = st.from_regex(r"[a-z]{1,3}", fullmatch=True)
STAGES = st.lists(
    st.builds(StageDeclaration, name=NAMES, after=st.lists(NAMES, unique=True).map(tuple), run=st.just("a.b:c")),
    min_size=1,
    max_size=4,
).map(tuple)


@given(st.builds(PipelineDeclaration, name=NAMES, namespace=NAMES, input_stream=NAMES, stages=STAGES))
def test_any_pipeline_is_the_same_after_it_was_stored(made: PipelineDeclaration) -> None:
    assert from_stored(to_document(made), "stored") == made


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a", "line 1, column 1: a document is a list, and has to have kind, name and other fields"),
        ("name: a", "line 1, column 1: kind is missing; it is one of Namespace, Stream, Pipeline"),
        ("kind: Steam\nname: a", "line 1, column 7: kind 'Steam' is not known; did you mean Stream?"),
        ("kind: stream", "line 1, column 7: kind 'stream' is not known; did you mean Stream?"),
        (
            "kind: Namespace\nname: a\n  b",
            "line 2, column 7: name: the name 'a b' has ' '; use letters",
        ),
        ("kind: Namespace", "line 1, column 1: Namespace lacks name: The namespace's name."),
        ("kind: Namespace\nname:", "line 1, column 1: Namespace lacks name"),
        ("kind: Namespace\nname: 7", "line 2, column 7: name is 7, which is not a text; write it in quotes"),
        ("kind: Namespace\nname: no", "line 2, column 7: name is False, which is not a text; write it in quotes"),
        (
            "kind: Stream\nname: a\nnamespace: a\npartition: 2",
            "line 4, column 1: partition is not a field of Stream; did you mean partitions?",
        ),
        ("kind: Stream\nname: a\nnamespace: a\npartitions: 0", "line 4, column 13: partitions: 0 is not 1 or more"),
        ("kind: Stream\nname: a\nnamespace: a\npartitions: 2000", "column 13: partitions: 2000 is above 1024"),
        ("kind: Stream\nname: a\nnamespace: a\npartitions: many", "partitions: 'many' is not"),
        ("kind: Stream\nname: a\nnamespace: a\npartitions: yes", "partitions: True is not a whole number"),
        (
            "kind: Stream\nname: a\nnamespace: a\nttl: a week",
            "line 4, column 6: ttl is 'a week'; write a number with a unit: 90s, 12h, 7d",
        ),
        ("kind: Stream\nname: a\nnamespace: a\nttl: 0s", "ttl: 0.0 is not 1 or more"),
        ("kind: Stream\nname: a\nnamespace: a\nttl: yes", "ttl: True is not seconds, or with a unit"),
        (pipeline("  charge"), "line 13, column 3: stages is 'charge', which is not a list; write [...]"),
        (pipeline("  - charge"), "line 13, column 5: stages[0] is 'charge', and has to have fields of its own"),
        (pipeline("  []"), "line 13, column 3: stages: there is none; give 1 or more"),
        (pipeline("  - {name: a, after: b}"), "column 22: after is 'b', which is not a list; write [...]"),
        (pipeline("  - {name: a, after: [1]}"), "column 23: after has 1, which is not a text; write it in quotes"),
        (
            pipeline("  - {name: a}\n  - {name: b, after: [a, a]}"),
            "line 14, column 26: after has 'a' twice; remove one of them",
        ),
        (pipeline("  - {name: a, run: stock}"), "column 20: run: 'stock' names no function; write module:function"),
        (pipeline("  - {name: a, retry: 3}"), "column 22: retry is 3, and has to have fields of its own"),
        (
            pipeline("  - {name: a, retry: {maxAttemps: 3}}"),
            "column 23: maxAttemps is not a field of retry; did you mean maxAttempts?",
        ),
        (
            pipeline("  - {name: a, output: needed}"),
            "column 23: output: 'needed' is not known; there are required, optional",
        ),
        (
            pipeline("  - name: a\nstartPoint: {location: offset}"),
            "line 14, column 13: location is offset, and offset is missing; give offset: N",
        ),
        (
            pipeline("  - name: a\ntriggers: [a..b]"),
            "line 14, column 12: triggers: the pattern 'a..b' has an empty part",
        ),
        (
            pipeline("  - name: a\n---\nkind: Stream\nname: orders\nnamespace: shop"),
            "line 16, column 7: Stream shop/orders is declared twice, first in f, line 5, column 7; remove one of them",
        ),
        (
            "kind: Stream\nname: a\nnamespace: shop",
            "line 3, column 12: namespace 'shop' is not declared; there is none, or add: kind: Namespace, name: shop",
        ),
        (
            pipeline("  - name: a").replace("inputStream: orders", "inputStream: order"),
            "line 11, column 14: inputStream is 'order', and there is no stream shop/order; did you mean orders?",
        ),
        (
            schedule(stream="order"),
            "line 11, column 9: stream is 'order', and there is no stream shop/order; did you mean orders?",
        ),
        (
            schedule(stream="orders\nexchange: prices"),
            "line 12, column 11: stream and exchange are both given; give one of them",
        ),
        (schedule().replace("stream: orders\n", ""), "line 8, column 1: neither stream nor exchange is given"),
        (
            schedule().replace("stream: orders\n", "exchange: prices\n"),
            "line 11, column 11: exchange is 'prices', and there is no exchange shop/prices; no exchange is declared",
        ),
        (
            schedule(cron="'0 25 * * *'"),
            "line 12, column 7: cron: '25' is no value of the hour; write *, a number from 0 to 23",
        ),
        (
            pipeline("  - {name: a, streamOutputs: [out]}"),
            "column 31: streamOutputs is 'out', and there is no stream shop/out; the namespace has orders",
        ),
        (
            pipeline("  - {name: a, retry: {maxAttempts: 1, deadLetterStream: dead}}"),
            "deadLetterStream is 'dead', and there is no stream shop/dead",
        ),
        (
            pipeline("  - {name: a, retry: {maxAttempts: 1, deadLetterStream: orders}}"),
            "deadLetterStream is 'orders', whose events these are: an event that always fails would come again",
        ),
        (
            "kind: Namespace\nname: shop\n---\nkind: Stream\nname: orders\nnamespace: shop\n"
            "retry: {maxAttempts: 1, deadLetterStream: shop/orders}",
            "deadLetterStream is 'shop/orders', whose events these are: an event that always fails would come again",
        ),
        (pipeline("  - name: root_event"), "line 13, column 11: a stage is named root_event, which stands for"),
        (
            pipeline("  - name: a\n  - name: a"),
            "line 14, column 11: stage 'a' is declared twice, first as stages[0]; rename one",
        ),
        (pipeline("  - {name: a, after: [a]}"), "column 23: stage 'a' has itself in after; remove it"),
        (pipeline("  - {name: a, after: [root_event]}"), "column 23: root_event is no stage, and an instance begins"),
        (
            pipeline("  - name: charge\n  - {name: b, dependencies: [chrge]}"),
            "column 30: stage 'b' has 'chrge' in dependencies, and no stage is so named; did you mean charge?",
        ),
        (
            pipeline("  - name: a\n  - {name: b, after: [a], dependencies: [a]}"),
            "line 14, column 23: stage 'b' has 'a' in after and in dependencies; remove it from after",
        ),
        (
            pipeline("  - {name: a, output: optional}\n  - {name: b, dependencies: [a]}"),
            "line 13, column 23: output of stage 'a' is optional, and stage 'b' depends on it; write required",
        ),
        (
            pipeline("  - {name: a, after: [c]}\n  - {name: b, after: [a]}\n  - {name: c, dependencies: [b]}"),
            "line 13, column 5: stages wait for each other in a cycle: a → c → b → a; remove one of these",
        ),
        (
            "kind: Namespace\nname: shop\n---\nkind: Token\nname: t\npermissions: [{access: all, namespace: shp}]",
            "line 6, column 40: namespace 'shp' is not declared; did you mean shop?",
        ),
        (
            pipeline("  - name: a\n---\nkind: Token\nname: t\npermissions:\n")
            + "  - {access: publish, kind: Stream, namespace: shop, name: order}",
            "line 18, column 60: shop/order is not declared as Stream; did you mean orders?",
        ),
        ("kind: Token\nname: t\npermissions: [{access: write}]", "access: 'write' is not known; there are publish"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_way_out(text: str, problem: str) -> None:
    (found,) = problems_of(text)

    assert problem in found
    assert found.startswith("line ")


def test_a_permission_without_a_kind_is_for_an_object_of_any_kind() -> None:
    token = "---\nkind: Token\nname: any\npermissions: [{access: all, namespace: shop, name: orders}]"

    assert problems_of(SHOP + token) == []


def test_all_mistakes_are_named_at_once_in_the_order_of_their_lines() -> None:
    text = SHOP.replace("partitions: 2", "partitions: none").replace("ttl: 7d", "ttl: long").replace("name: quote", "")

    assert [found.partition(":")[0] for found in problems_of(text)] == [
        "line 7, column 13",
        "line 8, column 6",
        "line 36, column 1",
    ]


def letters(**streams: str) -> str:
    """Streams of the namespace ``shop``, each with its dead-letter stream or with none."""
    retry = "\nretry: {{maxAttempts: 1, deadLetterStream: {}}}"
    return "kind: Namespace\nname: shop" + "".join(
        f"\n---\nkind: Stream\nname: {name}\nnamespace: shop{retry.format(to) if to else ''}"
        for name, to in streams.items()
    )


def repair(stream: str, to: str, *triggers: str) -> str:
    """A pipeline over a stream, with the dead-letter stream of its stage."""
    return (
        f"\n---\nkind: Pipeline\nname: repair-{stream}\nnamespace: shop\ninputStream: {stream}\n"
        f"triggers: [{', '.join(triggers)}]\nstages: [{{name: a, retry: {{maxAttempts: 1, deadLetterStream: {to}}}}}]"
    )


@pytest.mark.parametrize(
    ("text", "place", "circle"),
    [
        (letters(a="b", b="shop/a"), "line 7, column 43: deadLetterStream is 'b'", "shop/a → shop/b → shop/a;"),
        (letters(x="a", a="b", b="c", c="a"), "line 12, column 43", "shop/a → shop/b → shop/c → shop/a;"),
        (letters(a="", b="a") + repair("a", "b"), "line 11, column 43", "shop/b → shop/a → shop/b;"),
        (letters(a="", b="") + repair("a", "b") + repair("b", "a"), "line 17, column 62", "shop/a → shop/b → shop/a;"),
        (
            letters(a="", b="") + repair("a", "b", "'order.>'", "x") + repair("b", "a", "y", "'*.*'"),
            "line 17, column 62",
            "shop/a → shop/b → shop/a;",
        ),
    ],
)
def test_a_circle_of_dead_letter_streams_is_refused_with_all_its_streams(text: str, place: str, circle: str) -> None:
    (found,) = problems_of(text)

    assert found.startswith(place)
    assert f"whose own letters come back: {circle} an event that always fails would go round for ever" in found


@pytest.mark.parametrize(
    "text",
    [
        letters(a="b", b="c", c=""),
        letters(a="c", b="c", c="") + repair("a", "b"),
        letters(a="", failed="") + repair("a", "failed") + "\n---\nkind: Pipeline\nname: again\n"
        "namespace: shop\ninputStream: failed\nstages: [{name: wait, streamOutputs: [a]}]",
        letters(a="", b="") + repair("a", "b", "order.made", "order.*") + repair("b", "a", "'alert.>'", "order"),
    ],
)
def test_dead_letters_that_do_not_come_back_as_letters_are_accepted(text: str) -> None:
    assert problems_of(text) == []


def test_every_cycle_is_printed() -> None:
    waits = {"a": ["b"], "b": ["a"], "c": ["d", "a"], "d": ["c"], "e": ["e"]}

    assert list(cycles(waits)) == [["a", "b"], ["c", "d"]]


def test_a_long_chain_of_stages_is_no_cycle() -> None:
    assert list(cycles({n: [n - 1] for n in range(50_000, 0, -1)})) == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=8))
def test_a_cycle_is_found_exactly_where_no_order_of_the_stages_exists(edges: list[tuple[str, str]]) -> None:
    waits = {name: {other for one, other in edges if one == name and other != name} for name in "abcd"}
    done: set[str] = set()
    while ready := {name for name, others in waits.items() if others <= done} - done:
        done |= ready

    found = list(cycles(waits))

    assert bool(found) == (done != set(waits))
    for cycle in found:
        assert all(after in waits[name] for name, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
