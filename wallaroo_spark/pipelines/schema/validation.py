"""The schema as a whole: each object against the others. All problems are found at once.

The functions are pure. An object that stands in a file has its problems at the lines of that file; a stored object has
them under its own name, because a change of another object has caused them. Source: ``docs/pipelines/schema.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from wallaroo_spark.pipelines.schema import declarations
from wallaroo_spark.pipelines.schema.cron import zone_problem
from wallaroo_spark.pipelines.schema.documents import MOST_OBJECTS, PlacedDeclaration
from wallaroo_spark.pipelines.schema.names import ROOT_EVENT, ObjectKey, stream_key
from wallaroo_spark.pipelines.schema.problems import Problems
from wallaroo_spark.texts import hint
from wallaroo_spark.yaml_reader import FilePosition

Schema = Mapping[ObjectKey, declarations.Declaration]
"""The objects of an application, by their keys."""


def distinct(documents: Iterable[PlacedDeclaration], problems: Problems) -> dict[ObjectKey, PlacedDeclaration]:
    """Return the documents by their keys; of two with one key the first, and the second is a problem."""
    found: dict[ObjectKey, PlacedDeclaration] = {}
    for placed in documents:
        first = found.setdefault(placed.key, placed)
        if first is not placed:
            place = placed.source.at("name")
            problems.add(
                place, f"{placed.key} is declared twice, first in {first.source.at('name')}; remove one of them"
            )
    return found


def known_zones(documents: Mapping[ObjectKey, PlacedDeclaration], problems: Problems) -> None:
    """Add a problem for each schedule whose time zone this machine does not know; the machine on which a
    stored one was applied may know more."""
    for placed in documents.values():
        one = placed.declaration
        if isinstance(one, declarations.ScheduleDeclaration) and (problem := zone_problem(one.time_zone)):
            problems.add(placed.source.at("timeZone"), f"timeZone: {problem}")


def validate(schema: Schema, given: Mapping[ObjectKey, PlacedDeclaration], problems: Problems) -> None:
    """Add the problems of a schema; ``given`` are those of its objects that stand in files.

    An object of ``problems.unread`` is there to the others that name it, and its own references are checked as far as
    they could be read.
    """
    sketches = {placed.key: placed for placed in problems.sketches if placed.key not in given}
    schema = {**schema, **{key: placed.declaration for key, placed in sketches.items()}}
    given = {**given, **sketches}
    if len(schema) > MOST_OBJECTS:
        problems.add("the schema", f"there are {len(schema)} objects, and {MOST_OBJECTS} are permitted; divide it")
        return
    check = _Check(schema, given, problems)
    for declaration in schema.values():
        check.declaration(declaration)


class _Check:
    """The checks of the objects of one schema."""

    def __init__(self, schema: Schema, given: Mapping[ObjectKey, PlacedDeclaration], problems: Problems) -> None:
        self._given = given
        self._problems = problems
        self._known = {*schema, *(key for key in problems.unread if key is not None)}
        self._namespaces = {key.name for key in self._known if key.kind == declarations.NamespaceDeclaration.kind}

    def declaration(self, declaration: declarations.Declaration) -> None:
        """Check one object."""
        key = declaration.key
        if key.namespace and key.namespace not in self._namespaces:
            remedy = hint(key.namespace, self._namespaces, "there are", "there is none")
            text = (
                f"namespace {key.namespace!r} is not declared; {remedy}, or add: kind: Namespace, name: {key.namespace}"
            )
            self._add(key, ("namespace",), text)
        if isinstance(declaration, declarations.StreamDeclaration) and declaration.retry.dead_letter_stream:
            letters = declaration.retry.dead_letter_stream
            self._stream(key, ("retry", "deadLetterStream"), "deadLetterStream", letters)
        if isinstance(declaration, declarations.PipelineDeclaration):
            self._stream(key, ("inputStream",), "inputStream", declaration.input_stream)
            self._stages(declaration)
        if isinstance(declaration, declarations.ScheduleDeclaration) and (declaration.stream or declaration.exchange):
            field = "stream" if declaration.stream else "exchange"
            self._named(key, (field,), f"{field} is {getattr(declaration, field)!r}", declaration.target_key)
        if isinstance(declaration, declarations.TokenDeclaration):
            self._permissions(declaration)

    def _add(self, key: ObjectKey, path: tuple[str | int, ...], text: str) -> None:
        placed = self._given.get(key)
        place: FilePosition | str = f"the stored {key}" if placed is None else placed.source.at(*path)
        self._problems.add(place, text)

    def _stream(self, key: ObjectKey, path: tuple[str | int, ...], title: str, name: str) -> None:
        if name:
            self._named(key, path, f"{title} is {name!r}", stream_key(name, key.namespace))

    def _named(self, key: ObjectKey, path: tuple[str | int, ...], given: str, wanted: ObjectKey) -> None:
        """Check that an object which another one names is declared; ``given`` says where it is named."""
        if wanted in self._known:
            return
        kind = wanted.kind.lower()
        others = [other for other in self._known if other.kind == wanted.kind]
        if beside := [other.name for other in others if other.namespace == wanted.namespace]:
            remedy = hint(wanted.name, beside, "the namespace has", "")
        else:
            remedy = hint(wanted.path, [other.path for other in others], "there are", f"no {kind} is declared")
        self._add(key, path, f"{given}, and there is no {kind} {wanted.path}; {remedy}")

    def _stages(self, pipeline: declarations.PipelineDeclaration) -> None:
        first: dict[str, int] = {}
        for number, stage in enumerate(pipeline.stages):
            path = ("stages", number, "name")
            if stage.name == ROOT_EVENT:
                text = "a stage is named root_event, which stands for the event that started the instance; rename it"
                self._add(pipeline.key, path, text)
            if stage.name in first:
                text = f"stage {stage.name!r} is declared twice, first as stages[{first[stage.name]}]; rename one"
                self._add(pipeline.key, path, text)
            first.setdefault(stage.name, number)
            self._stage(pipeline, stage, number)
        for cycle in cycles(pipeline.stages):
            arrows = " → ".join([*cycle, cycle[0]])
            text = f"stages wait for each other in a cycle: {arrows}; remove one of these from after or dependencies"
            self._add(pipeline.key, ("stages", first[cycle[0]]), text)

    def _stage(
        self, pipeline: declarations.PipelineDeclaration, stage: declarations.StageDeclaration, number: int
    ) -> None:
        key = pipeline.key
        names = {other.name for other in pipeline.stages}
        for field, wanted in (("after", stage.after), ("dependencies", stage.dependencies)):
            for place, name in enumerate(wanted):
                path = ("stages", number, field, place)
                if name == stage.name:
                    self._add(key, path, f"stage {name!r} has itself in {field}; remove it")
                elif name == ROOT_EVENT and field == "after":
                    self._add(key, path, "root_event is no stage, and an instance begins with it; remove it from after")
                elif name not in names and name != ROOT_EVENT:
                    remedy = hint(name, names - {stage.name}, "there are", "there is no other stage")
                    self._add(
                        key, path, f"stage {stage.name!r} has {name!r} in {field}, and no stage is so named; {remedy}"
                    )
                elif field == "after" and name in stage.dependencies:
                    text = f"stage {stage.name!r} has {name!r} in after and in dependencies; remove it from after"
                    self._add(key, path, text)
        if stage.output == "optional":
            dependents = [other.name for other in pipeline.stages if stage.name in other.dependencies]
            if dependents:
                text = (
                    f"output of stage {stage.name!r} is optional, and stage {dependents[0]!r} depends on it; write "
                    "required, or name the stage in after in place of dependencies"
                )
                self._add(key, ("stages", number, "output"), text)
        for place, name in enumerate(stage.stream_outputs):
            self._stream(key, ("stages", number, "streamOutputs", place), "streamOutputs", name)
        if stage.retry.dead_letter_stream:
            at = ("stages", number, "retry", "deadLetterStream")
            self._stream(key, at, "deadLetterStream", stage.retry.dead_letter_stream)

    def _permissions(self, token: declarations.TokenDeclaration) -> None:
        for number, permission in enumerate(token.permissions):
            if permission.namespace and permission.namespace not in self._namespaces:
                remedy = hint(permission.namespace, self._namespaces, "there are", "there is none")
                path = ("permissions", number, "namespace")
                self._add(token.key, path, f"namespace {permission.namespace!r} is not declared; {remedy}")
            elif permission.name:
                kinds = (permission.kind,) if permission.kind else None
                known = {
                    key.name
                    for key in self._known
                    if key.namespace == permission.namespace and (kinds is None or key.kind in kinds)
                }
                if permission.name not in known:
                    thing = permission.kind or "object"
                    remedy = hint(permission.name, known, "there are", f"the namespace has no {thing}")
                    text = f"{permission.namespace}/{permission.name} is not declared as {thing}; {remedy}"
                    self._add(token.key, ("permissions", number, "name"), text)


def cycles(stages: Iterable[declarations.StageDeclaration]) -> Iterator[list[str]]:
    """Each cycle of stages that a walk along their predecessors finds, as names: each waits for the next one.

    A stage is in one of the cycles if it waits for itself; a stage that names itself directly is left out.
    """
    waits = {stage.name: sorted(stage.predecessors - {stage.name}) for stage in stages}
    done: set[str] = set()
    for start in waits:
        path: list[str] = []
        ways = [iter([start])]
        while ways:
            name = next(ways[-1], None)
            if name is None:
                ways.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                yield path[path.index(name) :]
            elif name in waits and name not in done:
                path.append(name)
                ways.append(iter(waits[name]))
