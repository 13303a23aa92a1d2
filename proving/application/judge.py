"""The promises of the random application, checked against its tables and what its clients were told. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from proving.application.schema import COUNT, FULFIL, INPUT, MAX_PARALLEL
from proving.shop.judge import Verdict

ORDERS, NOTES, AUDIT, RECEIPTS, FAILED = (f"rand/{name}" for name in ("orders", "notes", "audit", "receipts", "failed"))
STREAMS = (ORDERS, NOTES, AUDIT, RECEIPTS, FAILED)
EXAMPLES = 3
"""Broken things that a sentence names."""
Line = Mapping[str, Any]
Place = tuple[int, int]
Instance = tuple[str, int, int, int]
"""Pipeline, birth, partition and number."""


@dataclass(frozen=True)
class Record:
    """A record of a stream's table."""

    place: Place
    """Partition and offset."""
    id: str
    data: bytes
    """Its payload."""
    at: float
    """The time of the batch that wrote it, in seconds."""
    extensions: Mapping[str, str]

    @property
    def value(self) -> Any:
        """The payload, which is JSON."""
        return json.loads(self.data)


@dataclass(frozen=True)
class Evidence:
    """All that the judge looks at."""

    tables: dict[str, list[Record]]
    """The records of each stream."""
    history: list[dict[str, Any]]
    """The rows of the history of instances, in the order of their batches."""
    journals: dict[str, list[dict[str, Any]]]
    """What each client has asked for and was told."""
    stages: Mapping[int, Sequence[str]]
    """Version of the schema → the stages of the pipeline on orders; none where it was not declared."""


@dataclass
class _Run:
    """An instance in the history."""

    version: int
    """The version of the declaration that it runs."""
    stages: Counter[str] = field(default_factory=Counter)
    """Stage → outputs in the history."""
    pointers: Counter[str] = field(default_factory=Counter)
    """Stream → records that pointers lead to."""
    refused: Counter[str] = field(default_factory=Counter)
    """Stream → outputs that it did not accept."""
    outcomes: list[str] = field(default_factory=list)
    """Its ends."""


def judge(given: Evidence) -> Verdict:
    """Judge a run in which nothing is active any more."""
    verdict = Verdict()
    tables = {stream: {one.place: one for one in given.tables[stream]} for stream in STREAMS}
    for stream, records in tables.items():
        verdict.counts[f"records of {stream}"] = len(records)
        _offsets(verdict, stream, records, len(given.tables[stream]))
    _published(verdict, given, tables)
    runs = _runs(verdict, given.history)
    _instances(verdict, given, tables, runs)
    _outputs(verdict, given.history, tables, runs)
    for group, stream in (("billing", ORDERS), ("ledger", ORDERS), ("readers", NOTES)):
        _group(verdict, group, given.journals[group], tables[stream])
    _transactions(verdict, given.journals["ledger"], tables)
    return verdict


def _none(verdict: Verdict, found: Iterable[Any], sentence: str) -> None:
    names = sorted({str(one) for one in found})
    verdict.expect(not names, f"{len(names)} {sentence}, such as {names[:EXAMPLES]}")


def _offsets(verdict: Verdict, stream: str, records: Mapping[Place, Record], rows: int) -> None:
    verdict.expect(rows == len(records), f"{stream} has {rows} rows at {len(records)} offsets")
    for partition, offsets in _by_partition(records).items():
        whole = offsets == list(range(offsets[0], offsets[-1] + 1)) and (stream == NOTES or offsets[0] == 1)
        verdict.expect(whole, f"{stream}/{partition} has holes")


def _by_partition(places: Iterable[Place]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(places):
        found[partition].append(offset)
    return found


def _published(verdict: Verdict, given: Evidence, tables: Mapping[str, Mapping[Place, Record]]) -> None:
    lines = [line for role in ("publisher-1", "publisher-2") for line in given.journals[role]]
    asked = {line["id"]: line for line in lines if line["kind"] == "ask"}
    answers = {line["id"]: line for line in lines if line["kind"] == "published"}
    verdict.counts["events published"] = len(answers)
    for stream in (ORDERS, NOTES):
        found = Counter(one.id for one in tables[stream].values() if one.id.startswith("publisher-"))
        mine = {name for name, line in asked.items() if line["stream"] == stream}
        _none(verdict, [name for name, times in found.items() if times > 1], f"events are in {stream} more than once")
        _none(verdict, found.keys() - mine, f"events are in {stream} that nobody published")
        if stream == ORDERS:
            _none(verdict, (mine & answers.keys()) - found.keys(), f"events that were published are not in {stream}")
        told = {(*place,): name for name in mine & answers.keys() for place in answers[name]["places"]}
        first = {partition: offsets[0] for partition, offsets in _by_partition(tables[stream]).items()}
        for (partition, offset), name in told.items():
            one = tables[stream].get((partition, offset))
            # What was in an earlier life of the notes is gone with it.
            gone = stream == NOTES and offset < first.get(partition, offset + 1)
            if not gone:
                verdict.expect(one is not None and one.id == name, f"{name} is not at {partition}/{offset} of {stream}")
    early = [
        one.id
        for one in tables[ORDERS].values()
        if one.id in asked and asked[one.id]["delay"] and one.at < asked[one.id]["at"] + asked[one.id]["delay"] - 1
    ]
    _none(verdict, early, "delayed events were written before their time")


def _runs(verdict: Verdict, history: Sequence[Mapping[str, Any]]) -> dict[Instance, _Run]:
    runs: dict[Instance, _Run] = {}
    for row in history:
        if row["kind"] == "skipped":
            continue
        name = _instance(row)
        if row["kind"] == "began":
            verdict.expect(name not in runs, f"{name} began twice")
            runs[name] = _Run(row["version"])
        elif name not in runs:
            verdict.expect(False, f"{name} has a row {row['kind']} and never began")
        elif row["kind"] == "output":
            verdict.expect(not runs[name].outcomes, f"{name} has an output after its end")
            runs[name].stages[row["stage"]] += 1
        elif row["kind"] == "ended":
            runs[name].outcomes.append(row["outcome"])
        elif row["reason"]:
            runs[name].refused[row["target_stream"]] += 1
        else:
            runs[name].pointers[row["target_stream"]] += len(row["offsets"])
    return runs


def _instance(row: Mapping[str, Any]) -> Instance:
    return row["pipeline"], row["birth"], row["partition"], row["instance"]


def _instances(
    verdict: Verdict,
    given: Evidence,
    tables: Mapping[str, Mapping[Place, Record]],
    runs: Mapping[Instance, _Run],
) -> None:
    verdict.counts["instances"] = len(runs)
    verdict.counts["lives of rand/fulfil"] = len({birth for name, birth, *_ in runs if name == FULFIL})
    verdict.counts.update(f"instances {one.outcomes[0]}" for one in runs.values() if one.outcomes)
    _none(verdict, [name for name, one in runs.items() if len(one.outcomes) != 1], "instances have not one end")
    often = [name for name, one in runs.items() if any(times > 1 for times in one.stages.values())]
    _none(verdict, often, "instances have a stage with more than one output")
    short = [
        name
        for name, one in runs.items()
        if one.outcomes[:1] == ["done"]
        and one.stages.keys() != ({"count"} if name[0] == COUNT else {*_stages(given.stages, one.version)})
    ]
    _none(verdict, short, "instances are done without all outputs")
    for pipeline, stream in INPUT.items():
        births: dict[int, int] = {}
        for name, birth, partition, _ in runs:
            if name == pipeline:
                births[partition] = max(birth, births.get(partition, 0))
        begun = {(partition, number) for name, birth, partition, number in runs if name == pipeline}
        last = {one[2:] for one in runs if one[0] == pipeline and one[1] == births[one[2]]}
        _none(verdict, tables[stream].keys() - last, f"records of {stream} have no instance of {pipeline}")
        _none(verdict, begun - tables[stream].keys(), f"instances of {pipeline} have no record")
        most = _most_active(row for row in given.history if row["pipeline"] == pipeline)
        verdict.most_active[pipeline] = most
        limit = MAX_PARALLEL if pipeline == FULFIL else 50
        verdict.expect(most <= limit, f"{pipeline}: {most} instances were active at once, and {limit} are permitted")


def _stages(stages: Mapping[int, Sequence[str]], version: int) -> Sequence[str]:
    # A change of another object, or a version that nobody was told, has the stages of the version before.
    return stages[max(one for one in stages if one <= version)]


def _most_active(rows: Iterable[Mapping[str, Any]]) -> int:
    changes: dict[int, Counter[datetime]] = defaultdict(Counter)
    for row in rows:
        if row["kind"] in ("began", "ended"):
            changes[row["partition"]][row["at"]] += 1 if row["kind"] == "began" else -1
    most = 0
    for of in changes.values():
        active = 0
        for at in sorted(of):
            active += of[at]
            most = max(most, active)
    return most


def _outputs(
    verdict: Verdict,
    history: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Mapping[Place, Record]],
    runs: Mapping[Instance, _Run],
) -> None:
    pointed: Counter[tuple[str, Place]] = Counter()
    for row in history:
        if row["kind"] != "pointer":
            continue
        for offset in row["offsets"] or ():
            stream, place = row["target_stream"], (row["target_partition"], offset)
            pointed[stream, place] += 1
            record = tables[stream].get(place)
            if record is None:
                verdict.expect(False, f"{_instance(row)}: its pointer leads to {stream} {place}, where nothing is")
            elif stream == RECEIPTS:
                mine = (record.value["partition"], record.value["instance"]) == (row["partition"], row["instance"])
                verdict.expect(mine, f"{_instance(row)}: its pointer leads to the receipt of another one")
    _none(verdict, [one for one, times in pointed.items() if times > 1], "records have more than one pointer")
    written = {(stream, place) for stream in (RECEIPTS, FAILED) for place in tables[stream]}
    _none(verdict, written - pointed.keys(), "stream outputs and dead letters have no pointer")
    for name, one in runs.items():
        if name[0] == FULFIL and one.outcomes:
            wanted = {RECEIPTS: one.stages["pay"], FAILED: int(one.outcomes[0] == "failed")}
            found = {stream: one.pointers[stream] + one.refused[stream] for stream in wanted}
            verdict.expect(found == wanted, f"{name} has the outputs {found}, and {wanted} are right")
    unnamed = [place for place, one in tables[FAILED].items() if not one.extensions.get("failedoffset")]
    _none(verdict, unnamed, "dead letters do not name the event that failed")


def _group(verdict: Verdict, group: str, lines: Sequence[Line], records: Mapping[Place, Record]) -> None:
    wanted = set(records)
    given: set[Place] = set()
    ends: dict[int, int] = {}
    first = {partition: offsets[0] for partition, offsets in _by_partition(records).items()}
    for line in lines:
        if line["kind"] not in ("given", "acking"):
            continue
        partition, begin, ids = line["partition"], line["first"], line["ids"]
        places = [(partition, begin + number) for number in range(len(ids))]
        for place, name in zip(places, ids, strict=True):
            if place in records:
                verdict.expect(records[place].id == name, f"{group} is given {name} at {place}, which is another one")
            elif place[1] >= first.get(partition, place[1] + 1):
                verdict.expect(False, f"{group} is given {name} at {place}, where nothing is")
        if line["kind"] == "given":
            # A life of the notes begins behind the one before, whose end the group may not have seen.
            ahead = begin > max(ends.get(partition, 0), first.get(partition, 1) - 1) + 1 and group != "readers"
            verdict.expect(not ahead, f"{group} is given {partition}/{begin} and has acked up to {ends.get(partition)}")
        else:
            given.update(places)
            ends[partition] = max(ends.get(partition, 0), begin + len(ids) - 1)
    verdict.counts[f"records that group {group} has acked"] = len(given & wanted)
    _none(verdict, wanted - given, f"records were never acked by group {group}")


def _transactions(verdict: Verdict, lines: Sequence[Line], tables: Mapping[str, Mapping[Place, Record]]) -> None:
    entries = Counter((one.value["partition"], one.value["offset"]) for one in tables[AUDIT].values())
    _none(verdict, [one for one, times in entries.items() if times > 1], f"records have more than one entry in {AUDIT}")
    _none(verdict, tables[ORDERS].keys() - entries.keys(), f"records of {ORDERS} have no entry in {AUDIT}")
    by_attempt: dict[str, set[Place]] = defaultdict(set)
    for one in tables[AUDIT].values():
        by_attempt[one.value["attempt"]].add((one.value["partition"], one.value["offset"]))
    asked = {line["attempt"]: line for line in lines if line["kind"] == "acking"}
    for attempt, places in by_attempt.items():
        line = asked[attempt]
        whole = {(line["partition"], line["first"] + number) for number in range(len(line["ids"]))}
        verdict.expect(places == whole, f"transaction {attempt} has written {len(places)} of {len(whole)} entries")
    notes = {one.id: place for place, one in tables[NOTES].items()}
    first = {partition: offsets[0] for partition, offsets in _by_partition(tables[NOTES]).items()}
    for line in lines:
        if line["kind"] != "acked":
            continue
        verdict.counts["transactions told as committed"] += 1
        for stream, places, reason in line["written"]:
            for place in ((*one,) for one in places):
                here = tables[stream].get(place)
                gone = stream == NOTES and (reason or place[1] < first.get(place[0], place[1] + 1))
                mine = here is not None and here.data.find(line["attempt"].encode()) >= 0
                verdict.expect(gone or mine, f"{line['attempt']} was told {stream} {place}, where it is not: {reason}")
    lone = [name for name in notes if name.startswith("note-") and name.removeprefix("note-") not in by_attempt]
    _none(verdict, lone, "transactions have written a note and no entries")
