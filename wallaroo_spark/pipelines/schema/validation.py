"""The schema as a whole: each object against the others. All problems are found at once.

The functions are pure. An object that stands in a file has its problems at the lines of that file; a stored object has
them under its own name, because a change of another object has caused them. Source: ``docs/pipelines/schema.md``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import pairwise
from typing import NamedTuple, TypeVar

from wallaroo_spark.pipelines.schema import declarations
from wallaroo_spark.pipelines.schema.cron import zone_problem
from wallaroo_spark.pipelines.schema.documents import MOST_OBJECTS, PlacedDeclaration, Problems
from wallaroo_spark.pipelines.schema.names import REST, ROOT_EVENT, ObjectKey, shared_pattern, stream_key
from wallaroo_spark.texts import hint

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
    known = {*schema, *(key for key in problems.unread if key is not None)}
    check = _Check(known, {key.name for key in known if key.kind == declarations.NamespaceDeclaration.kind})
    for key, declaration in schema.items():
        placed = given.get(key)
        for path, text in check.declaration(declaration):
            problems.add(f"the stored {key}" if placed is None else placed.source.at(*path), text)
    for way, text in _circles(schema.values(), given.keys()):
        problems.add(given[way.declared].source.at(*way.path), text)


_Path = tuple[str | int, ...]
_Found = Iterator[tuple[_Path, str]]
"""Problems of an object: the path of a field, and the text."""


class _Check(NamedTuple):
    """The checks of the objects of one schema."""

    known: Set[ObjectKey]
    """The objects that are there."""
    namespaces: Set[str]

    def declaration(self, one: declarations.Declaration) -> _Found:
        """Check one object."""
        key = one.key
        if key.namespace:
            yield from self._namespace(
                ("namespace",), key.namespace, f", or add: kind: Namespace, name: {key.namespace}"
            )
        for way in _letters(one):
            yield from self._stream(way.path, way.given, key.namespace)
            if way.letters == way.events:
                text = f"deadLetterStream is {way.given!r}, whose events these are: an event that always fails would"
                yield way.path, f"{text} come again for ever; name another stream"
        match one:
            case declarations.PipelineDeclaration():
                yield from self._stream(("inputStream",), one.input_stream, key.namespace)
                yield from self._stages(one)
            case declarations.ScheduleDeclaration() if one.stream or one.exchange:
                field = "stream" if one.stream else "exchange"
                yield from self._named((field,), f"{field} is {getattr(one, field)!r}", one.target_key)
            case declarations.TokenDeclaration():
                for number, permission in enumerate(one.permissions):
                    yield from self._permission(("permissions", number), permission)

    def _namespace(self, path: _Path, name: str, remedy: str = "") -> _Found:
        if name not in self.namespaces:
            known = hint(name, self.namespaces, "there are", "there is none")
            yield path, f"namespace {name!r} is not declared; {known}{remedy}"

    def _stream(self, path: _Path, name: str, namespace: str) -> _Found:
        if name:
            field = next(one for one in reversed(path) if isinstance(one, str))
            yield from self._named(path, f"{field} is {name!r}", stream_key(name, namespace))

    def _named(self, path: _Path, given: str, wanted: ObjectKey) -> _Found:
        """Check that an object which another one names is declared; ``given`` says where it is named."""
        if wanted in self.known:
            return
        kind = wanted.kind.lower()
        others = [other for other in self.known if other.kind == wanted.kind]
        if beside := [other.name for other in others if other.namespace == wanted.namespace]:
            remedy = hint(wanted.name, beside, "the namespace has", "")
        else:
            remedy = hint(wanted.path, [other.path for other in others], "there are", f"no {kind} is declared")
        yield path, f"{given}, and there is no {kind} {wanted.path}; {remedy}"

    def _stages(self, pipeline: declarations.PipelineDeclaration) -> _Found:
        first: dict[str, int] = {}
        for number, stage in enumerate(pipeline.stages):
            path = ("stages", number)
            if stage.name == ROOT_EVENT:
                text = "a stage is named root_event, which stands for the event that started the instance; rename it"
                yield (*path, "name"), text
            if stage.name in first:
                text = f"stage {stage.name!r} is declared twice, first as stages[{first[stage.name]}]; rename one"
                yield (*path, "name"), text
            first.setdefault(stage.name, number)
            yield from self._order(path, pipeline, stage)
            for place, name in enumerate(stage.stream_outputs):
                yield from self._stream((*path, "streamOutputs", place), name, pipeline.namespace)
        for cycle in cycles({stage.name: sorted(stage.predecessors) for stage in pipeline.stages}):
            arrows = " → ".join([*cycle, cycle[0]])
            text = f"stages wait for each other in a cycle: {arrows}; remove one of these from after or dependencies"
            yield ("stages", first[cycle[0]]), text

    def _order(
        self, path: _Path, pipeline: declarations.PipelineDeclaration, stage: declarations.StageDeclaration
    ) -> _Found:
        """Check the stages that a stage names, and those that name it."""
        names = {other.name for other in pipeline.stages}
        for field, wanted in (("after", stage.after), ("dependencies", stage.dependencies)):
            for place, name in enumerate(wanted):
                at = (*path, field, place)
                if name == stage.name:
                    yield at, f"stage {name!r} has itself in {field}; remove it"
                elif name == ROOT_EVENT and field == "after":
                    yield at, "root_event is no stage, and an instance begins with it; remove it from after"
                elif name not in names and name != ROOT_EVENT:
                    remedy = hint(name, names - {stage.name}, "there are", "there is no other stage")
                    yield at, f"stage {stage.name!r} has {name!r} in {field}, and no stage is so named; {remedy}"
                elif field == "after" and name in stage.dependencies:
                    yield at, f"stage {stage.name!r} has {name!r} in after and in dependencies; remove it from after"
        dependents = [other.name for other in pipeline.stages if stage.name in other.dependencies]
        if stage.output == "optional" and dependents:
            text = (
                f"output of stage {stage.name!r} is optional, and stage {dependents[0]!r} depends on it; write "
                "required, or name the stage in after in place of dependencies"
            )
            yield (*path, "output"), text

    def _permission(self, path: _Path, permission: declarations.Permission) -> _Found:
        namespace, name, kind = permission.namespace, permission.name, permission.kind
        if namespace and namespace not in self.namespaces:
            yield from self._namespace((*path, "namespace"), namespace)
        elif name:
            known = {key.name for key in self.known if key.namespace == namespace and kind in (None, key.kind)}
            if name not in known:
                thing = kind or "object"
                remedy = hint(name, known, "there are", f"the namespace has no {thing}")
                yield (*path, "name"), f"{namespace}/{name} is not declared as {thing}; {remedy}"


class _Letters(NamedTuple):
    """The way of dead letters, as a field declares it."""

    declared: ObjectKey
    """The object that has the field."""
    path: _Path
    """The field."""
    given: str
    """Its value."""
    events: ObjectKey
    """The stream of the events."""
    letters: ObjectKey
    """The stream of their letters."""
    triggers: tuple[str, ...] = (REST,)
    """Patterns of the types that go this way; a letter has the type of its event."""


def _letters(one: declarations.Declaration) -> Iterator[_Letters]:
    match one:
        case declarations.StreamDeclaration() if name := one.retry.dead_letter_stream:
            yield _Letters(one.key, ("retry", "deadLetterStream"), name, one.key, stream_key(name, one.namespace))
        case declarations.PipelineDeclaration():
            events = stream_key(one.input_stream, one.namespace)
            for number, stage in enumerate(one.stages):
                if name := stage.retry.dead_letter_stream:
                    path = ("stages", number, "retry", "deadLetterStream")
                    letters = stream_key(name, one.namespace)
                    yield _Letters(one.key, path, name, events, letters, one.triggers or (REST,))


def _circles(schema: Iterable[declarations.Declaration], given: Set[ObjectKey]) -> Iterator[tuple[_Letters, str]]:
    """Find circles of streams in which an event that always fails would go round, each at a field of a given object.

    A circle of stored objects alone is older than this rule, and stops no change of others.
    """
    between: dict[ObjectKey, dict[ObjectKey, list[_Letters]]] = defaultdict(lambda: defaultdict(list))
    for one in schema:
        for way in _letters(one):
            between[way.events][way.letters].append(way)
    for circle in cycles(between):
        hops = [between[events][letters] for events, letters in pairwise([*circle, circle[0]])]
        closing = (way for hop in hops for way in hop if way.declared in given and _goes_round(way, hops))
        if found := next(closing, None):
            start = circle.index(found.events)
            arrows = " → ".join(key.path for key in [*circle[start:], *circle[: start + 1]])
            text = f"deadLetterStream is {found.given!r}, whose own letters come back: {arrows}; an event that always"
            yield found, f"{text} fails would go round for ever; name a stream outside the circle in one of them"


def _goes_round(way: _Letters, hops: Iterable[Iterable[_Letters]]) -> bool:
    """Whether the letters of some type go this way and then around the circle."""
    types: Set[str] = set(way.triggers)
    for hop in hops:
        permitted = {pattern for other in hop for pattern in other.triggers}
        types = {shared for one in types for other in permitted if (shared := shared_pattern(one, other))}
    return bool(types)


_Node = TypeVar("_Node")


def cycles(waits: Mapping[_Node, Iterable[_Node]]) -> Iterator[list[_Node]]:
    """Each cycle that a walk finds, from each node to those that it waits for: each waits for the next one.

    A node is in one of the cycles if it waits for itself; one that names itself directly is left out.
    """
    done: set[_Node] = set()
    for start in waits:
        path: dict[_Node, None] = {}
        ways = [iter([start])]
        while ways:
            node = next(ways[-1], None)
            if node is None:
                ways.pop()
                if path:
                    done.add(path.popitem()[0])
            elif node in path:
                yield list(path)[list(path).index(node) :]
            elif node in waits and node not in done:
                path[node] = None
                ways.append(iter([other for other in waits[node] if other != node]))
