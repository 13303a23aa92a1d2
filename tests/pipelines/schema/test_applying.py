"""Documents are applied all or none, over versions that several processes may write at once and that survive deaths."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.pipelines.schema.samples import SHOP, pipeline
from tests.waiting import SECONDS
from wallaroo_spark.errors import ConfigurationError, PipelineError
from wallaroo_spark.pipelines.schema.applying import (
    ApplyResult,
    Branch,
    FieldChange,
    apply_files,
    delete_objects,
    find,
    kind_of,
)
from wallaroo_spark.pipelines.schema.declarations import (
    NamespaceDeclaration,
    RetryPolicy,
    ScheduleDeclaration,
    StreamDeclaration,
)
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.steps import AnyStep, SchemaStep, at_each

STAGES = "stages: [{name: pay}]"
NOW = 1_800_000_000.0
ORDERS = ObjectKey("Stream", "shop", "orders")
FULFIL = ObjectKey("Pipeline", "shop", "fulfil")


class Application:
    """An application in a folder, and files that are applied to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SchemaStore(str(folder / "app"))

    def file(self, text: str, name: str = "shop.yaml") -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def apply(self, *texts: str, **how: Any) -> ApplyResult:
        paths = [self.file(text, f"{number}.yaml") for number, text in enumerate(texts)]
        return apply_files(self.store, paths, NOW, **how)

    def refused(self, *texts: str, **how: Any) -> str:
        before = self.store.newest()
        with pytest.raises(ConfigurationError) as caught:
            self.apply(*texts, **how)
        assert self.store.newest() == before
        return caught.value.message.replace(str(self.folder), "")

    def partitions(self) -> int:
        orders = self.store.newest().objects[ORDERS]
        assert isinstance(orders, StreamDeclaration)
        return orders.partitions


@pytest.fixture(params=["local", "objects"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Application:
    """An application on the local file system, and on one that behaves as an object store."""
    made = Application(tmp_path)
    if request.param == "objects":
        folder = made.store._folder
        folder.filesystem, folder.path = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "app/_wallaroo/s"
        folder.filesystem.create_dir(folder.path)
        folder.local, folder._objects = False, True
    return made


def orders(partitions: int) -> str:
    return f"kind: Namespace\nname: shop\n---\nkind: Stream\nname: orders\nnamespace: shop\npartitions: {partitions}\n"


def test_documents_are_applied_and_read_back(app: Application) -> None:
    result = app.apply(SHOP)

    assert (result.version, result.written) == (1, True)
    assert result.note.startswith("version 1 is written")
    assert [change.action for change in result.changes] == ["created"] * 8
    stored = app.store.newest()
    assert (stored.version, stored.applied_at, len(stored.objects)) == (1, NOW, 8)
    assert app.partitions() == 2


def test_an_application_without_a_schema_has_version_0(app: Application) -> None:
    assert app.store.newest().version == 0
    assert dict(app.store.newest().objects) == {}


def test_applying_again_changes_nothing_and_says_so(app: Application) -> None:
    app.apply(SHOP)

    result = app.apply(SHOP)

    assert (result.version, result.written) == (1, False)
    assert result.note == "nothing to change; the schema stays at version 1"
    assert app.store.newest().version == 1


def test_a_change_shows_each_field_with_its_default(app: Application) -> None:
    app.apply(orders(1))

    result = app.apply(orders(4), dry_run=True)

    assert result.changes[1].fields == (FieldChange("partitions", 1, 4),)
    assert (result.version, result.written) == (2, False)
    assert app.partitions() == 1


def test_a_change_of_a_stage_is_shown_by_its_name(app: Application) -> None:
    app.apply(pipeline("  - name: a\n  - name: b\n"))

    result = app.apply(pipeline("  - name: a\n  - {name: b, after: [a]}\n  - name: c\n"))

    assert [(one.path, one.before) for one in result.changes[2].fields] == [
        ("stages[b].after", []),
        ("stages[c]", None),
    ]


def test_objects_that_are_not_in_the_files_stay(app: Application) -> None:
    app.apply(SHOP)

    app.apply("kind: Stream\nname: returns\nnamespace: shop\n")

    assert len(app.store.newest().objects) == 9
    assert app.store.version(1).version == 1


def test_one_bad_document_applies_none(app: Application) -> None:
    message = app.refused(orders(2), "kind: Stream\nname: a..b\nnamespace: shop\npartitions: 0")

    assert message.splitlines() == [
        "/1.yaml, line 2, column 7: name: the name 'a..b' has two dots in a row; remove one of them",
        "/1.yaml, line 4, column 13: partitions: 0 is not 1 or more",
        "2 problems; nothing was applied",
    ]


def stream(name: str, letters: str) -> str:
    return f"kind: Stream\nname: {name}\nnamespace: shop\nretry: {{maxAttempts: 1, deadLetterStream: {letters}}}"


def test_a_stored_circle_of_dead_letter_streams_stops_no_other_change_and_can_be_repaired(app: Application) -> None:
    retry = RetryPolicy(max_attempts=1, dead_letter_stream="b")
    in_circle = StreamDeclaration(name="a", namespace="shop", retry=retry)
    back = StreamDeclaration(name="b", namespace="shop", retry=dataclasses.replace(retry, dead_letter_stream="shop/a"))
    stored = (NamespaceDeclaration(name="shop"), in_circle, back)
    app.store.write(StoredSchema(1, {one.key: one for one in stored}, {}, NOW))

    assert app.apply(orders(1)).written
    delete_objects(app.store, [ORDERS], NOW)
    message = app.refused(stream("b", "a"))
    assert app.apply("kind: Stream\nname: letters\nnamespace: shop", stream("b", "letters")).written

    assert message.startswith(
        "/0.yaml, line 4, column 43: deadLetterStream is 'a', whose own letters come back: shop/b"
    )


def test_a_wrong_field_hides_no_wrong_reference_and_makes_none(app: Application) -> None:
    pipeline = "kind: Pipeline\nname: fulfil\nnamespace: shop\ninputStream: {}\nstages: [{{name: pay}}]"
    broken = "kind: Stream\nname: orders\nnamespace: shop\npartitions: 0"
    message = app.refused(
        "kind: Namespace\nname: shop",
        broken,
        pipeline.format("orders"),
        pipeline.format("ordres").replace("fulfil", "g"),
    )

    partitions, reference, last = message.splitlines()
    assert "/1.yaml, line 4, column 13: partitions: 0 is not 1 or more" in partitions
    assert "/3.yaml, line 4, column 14: inputStream is 'ordres', and there is no stream shop/ordres" in reference
    assert last == "2 problems; nothing was applied"


WRONG = """
kind: Pipeline
name: fulfil
namespace: shopp
inputStream: ordres
maxParallel: 0
triggers: [shop.>, 7]
stages:
  - name: pay
    run: no function
    dependencies: [pray]
    streamOutputs: [payd]
    retry: {delay: soon, maxAttempts: 2, deadLetterStream: lettres}
""".strip()


def test_a_document_with_wrong_fields_shows_its_wrong_references_too(app: Application) -> None:
    app.apply(
        orders(1), WRONG.replace("shopp", "shop").replace("ordres", "orders").partition("maxParallel")[0] + STAGES
    )
    schedule = "kind: Schedule\nname: closing\nnamespace: shop\nstream: ordres\ncron: never\ntype: t"
    message = app.refused(WRONG, schedule, f"{WRONG}\n  - name: 7".replace("fulfil", "other").replace("shopp", "shop"))

    places = [line.split(":")[0] for line in message.splitlines()[:-1]]
    in_first, in_schedule, in_other = (
        [int(place.split(", line ")[1].split(",")[0]) for place in places if f"/{number}.yaml" in place]
        for number in range(3)
    )
    assert in_first == [3, 4, 5, 6, 9, 10, 11, 12, 12]
    assert in_schedule == [4, 5]
    # The stages are not checked against each other where one of them has no name.
    assert in_other == [4, 5, 6, 9, 12, 13]


def test_a_document_without_a_readable_name_leaves_references_for_later(app: Application) -> None:
    message = app.refused("kind: Stream\nname: 7\nnamespace: shop", orders(1))

    assert message.splitlines()[-1] == "1 problem; nothing was applied"


def test_a_time_zone_that_this_machine_does_not_know_is_refused_and_a_stored_one_stays(app: Application) -> None:
    """A machine with more zones may have applied it."""
    closing = "kind: Schedule\nname: closing\nnamespace: shop\nstream: orders\ncron: 0 18 * * *\ntimeZone: {}\ntype: t"
    message = app.refused(orders(1), closing.format("Mars/Olympus"))
    assert message.splitlines() == [
        "/1.yaml, line 6, column 11: timeZone: 'Mars/Olympus' is not a time zone of this machine; give a name such as "
        "UTC or Europe/Berlin",
        "1 problem; nothing was applied",
    ]

    app.apply(orders(1), closing.format("UTC"))
    key = ObjectKey("Schedule", "shop", "closing")
    stored = app.store.newest()
    known = stored.objects[key]
    assert isinstance(known, ScheduleDeclaration)
    far = dataclasses.replace(known, time_zone="Mars/Olympus")
    app.store.write(StoredSchema(stored.version + 1, {**stored.objects, key: far}, {}, NOW))
    app.apply(orders(2))
    assert app.store.newest().objects[key] == far


def test_a_problem_has_its_place_for_programs(app: Application) -> None:
    with pytest.raises(ConfigurationError) as caught:
        app.apply("kind: Stream\nname: 7\nnamespace: shop")

    (problem,) = caught.value.fields["problems"]
    assert (problem["line"], problem["column"]) == (2, 7)
    assert problem["problem"] == "name is 7, which is not a text; write it in quotes"


def test_files_that_cannot_be_read_are_named_together(app: Application) -> None:
    with pytest.raises(ConfigurationError) as caught:
        apply_files(app.store, [str(app.folder / "none.yaml"), app.file("a: [1"), app.file("", "e.yaml")], NOW)

    first, second, third, last = caught.value.message.splitlines()
    assert "none.yaml cannot be read: No such file or directory" in first
    assert "shop.yaml is not YAML in line 1, column 6" in second
    assert "e.yaml, line 1, column 1: there is no document" in third
    assert last == "3 problems; nothing was applied"


def test_the_same_object_in_two_files_is_refused(app: Application) -> None:
    message = app.refused(orders(2), "kind: Stream\nname: orders\nnamespace: shop\n")

    assert "/1.yaml, line 2, column 7: Stream shop/orders is declared twice, first in " in message
    assert "/0.yaml, line 5, column 7; remove one of them" in message


def test_objects_may_refer_to_those_that_were_applied_before(app: Application) -> None:
    app.apply(orders(1))
    stages = "kind: Pipeline\nname: p\nnamespace: shop\ninputStream: orders\nstages: [{name: a}]\n"

    assert app.apply(stages).version == 2


def test_partitions_are_not_lowered(app: Application) -> None:
    app.apply(orders(4))

    message = app.refused(orders(3))

    assert "/0.yaml, line 7, column 13: partitions of Stream shop/orders would go from 4 to 3" in message
    assert "leave 4 or more, or declare a new stream" in message
    assert app.apply(orders(5)).written


def test_a_pipeline_keeps_its_input_stream(app: Application) -> None:
    app.apply(SHOP)

    message = app.refused(SHOP.replace("inputStream: orders", "inputStream: shipments"))

    assert "column 14: inputStream of Pipeline shop/fulfil would go from shop/orders to shop/shipments" in message
    assert "declare a pipeline of another name" in message


def test_a_stage_is_removed_also_while_instances_may_need_it(app: Application) -> None:
    app.apply(pipeline("  - name: a\n  - name: b\n"))

    assert app.apply(pipeline("  - name: a\n")).written


def test_an_object_is_deleted_unless_another_needs_it(app: Application) -> None:
    app.apply(pipeline("  - name: a\n"))

    with pytest.raises(ConfigurationError) as caught:
        delete_objects(app.store, [ORDERS], NOW)
    assert caught.value.message.splitlines()[0] == (
        "the stored Pipeline shop/fulfil: inputStream is 'orders', and there is no stream shop/orders; "
        "no stream is declared"
    )
    with pytest.raises(ConfigurationError, match="Stream shop/other: it is not declared, so it cannot be deleted"):
        delete_objects(app.store, [ObjectKey("Stream", "shop", "other")], NOW)

    assert not delete_objects(app.store, [ORDERS, FULFIL], NOW, dry_run=True).written
    result = delete_objects(app.store, [ORDERS, FULFIL], NOW)

    assert [change.action for change in result.changes] == ["deleted", "deleted"]
    assert list(app.store.newest().objects) == [ObjectKey("Namespace", "", "shop")]


def test_a_branch_is_not_applied_over_a_newer_one(app: Application) -> None:
    app.apply(orders(1), branch=Branch("main", 20))

    for timestamp in (19, 20):
        result = app.apply(orders(4), branch=Branch("main", timestamp))
        assert (result.written, result.changes) == (False, ())
        assert result.note == (
            f"branch 'main' was applied with timestamp 20, and {timestamp} is not newer; "
            "nothing was changed, and the schema stays at version 1"
        )
    assert app.partitions() == 1
    assert app.apply(orders(4), branch=Branch("main", 21)).written
    assert app.apply(orders(5), branch=Branch("other", 3)).written


def test_the_timestamp_of_a_branch_is_kept_also_where_nothing_changed(app: Application) -> None:
    app.apply(orders(4), branch=Branch("main", 10))
    app.apply(orders(4), branch=Branch("main", 20))

    assert not app.apply(orders(8), branch=Branch("main", 15)).written
    assert app.partitions() == 4
    with pytest.raises(ConfigurationError, match=r"branch: the name 'a b' has ' '"):
        Branch("a b", 1)


def test_objects_are_found_by_kind_and_name(app: Application) -> None:
    app.apply(SHOP)
    stored = app.store.newest()

    assert [one.name for one in find(stored, kind_of("streams"))] == ["orders", "shipments"]
    assert find(stored, kind_of("Pipeline"), "fulfil") == find(stored, "Pipeline", "shop/fulfil")
    assert find(stored, "Stream", "store/orders") == []
    with pytest.raises(ConfigurationError, match="kind 'steam' is not known; there are namespace, stream, pipeline"):
        kind_of("steam")


def test_a_version_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    app = Application(tmp_path)
    app.apply(SHOP)
    file = tmp_path / "app" / "_wallaroo" / "schema" / "1.json"
    content = json.loads(file.read_text())

    damages: tuple[dict[str, object], ...] = (
        {"format": 2},
        {"objects": [{"kind": "Lake"}]},
        {"objects": [7]},
        {"branches": []},
    )
    for damage in damages:
        file.write_text(json.dumps(content | damage))
        with pytest.raises(PipelineError, match=r"schema/1.json is not a schema as this version writes it \(.+\); use"):
            app.store.newest()
    file.write_bytes(b"\xff")
    with pytest.raises(PipelineError, match=r"schema/1.json is not a schema"):
        app.store.newest()
    with pytest.raises(PipelineError, match="there is no version 7"):
        app.store.version(7)


def test_of_two_that_apply_at_once_one_is_told_to_try_again(tmp_path: Path) -> None:
    app, other = Application(tmp_path), Application(tmp_path)
    app.apply(orders(1))

    def overtake(step: AnyStep) -> None:
        if step is SchemaStep.CHECKED:
            remove()
            assert apply_files(other.store, [other.file(orders(2), "other.yaml")], NOW).version == 2

    remove = at_each(overtake)
    with pytest.raises(PipelineError) as caught:
        app.apply(orders(4))

    assert "version 2 is there; nothing of these documents was applied, so run it again" in caught.value.message
    assert app.partitions() == 2
    assert app.apply(orders(4)).version == 3


def test_of_many_that_apply_at_once_each_wins_or_is_told(tmp_path: Path) -> None:
    Application(tmp_path).apply(orders(1))

    def attempt(number: int) -> int:
        app = Application(tmp_path)
        text = f"kind: Stream\nname: s{number}\nnamespace: shop\n"
        try:
            return apply_files(app.store, [app.file(text, f"s{number}.yaml")], NOW).version
        except PipelineError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(attempt, range(24)))

    won = sorted(version for version in versions if version)
    names = {f"s{number}" for number, version in enumerate(versions) if version}
    stored = Application(tmp_path).store.newest()
    assert won == list(range(2, len(won) + 2))
    assert {key.name for key in stored.objects} == names | {"shop", "orders"}


def test_a_death_at_any_step_leaves_the_old_or_the_new_schema_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipelines.schema.deaths", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    deaths = json.loads(done.stdout)
    assert {death["version"] for death in deaths} == {1, 2}
    # The process that is told is the last; before it, the new version is there from one step on and stays.
    assert [death["version"] for death in deaths] == sorted(death["version"] for death in deaths)
    assert len(deaths) >= 7
    assert all(death["partitions"] == (1 if death["version"] == 1 else 4) for death in deaths)
    assert all(death["again"] == 2 and death["then"] == 4 for death in deaths)
