"""The planner in any order of events: gateways that start, write and live on too long, listings in two steps, batches
that run again. Each acknowledged file is read in exactly one batch, and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.engine.source.plan import InputOffset, Inputs, carried_batches, holes, next_offset, read_files
from wallaroo_spark.streams.inbox import InboxFile, InboxPosition

GATEWAYS = ("g0", "g1")
Name = tuple[str, int, int]
"""A file: gateway, generation and number."""


class World:
    """The folder of an application in memory, its gateways, and a source that plans and reads batches."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.claims: dict[str, int] = dict.fromkeys(GATEWAYS, 0)
        self.files: dict[Name, int] = {}
        self.acknowledged: set[Name] = set()
        self.read: list[Name] = []
        self.carried: dict[int, int] = {}
        self.carried_read: list[int] = []
        self.offset = InputOffset()
        self.batch = 0
        self.now = 1
        self.listed: dict[str, int] = dict(self.claims)
        self.settled: set[Name] = set()

    def start(self, gateway: str) -> None:
        """A gateway begins a new generation; processes of the earlier ones may live on."""
        self.claims[gateway] += 1

    def write(self, gateway: str, behind: int, rows: int, overtaken: bool) -> None:
        """A process of a generation ``behind`` the newest one writes; perhaps a newer one begins meanwhile."""
        generation = self.claims[gateway] - behind
        if generation < 1:
            return
        number = 1 + max((name[2] for name in self.files if name[:2] == (gateway, generation)), default=0)
        purged = self.offset.inbox.get(gateway, InboxPosition())
        if purged.generation == generation:
            number = max(number, purged.sequence + 1)
        self.files[gateway, generation, number] = rows
        if overtaken:
            self.start(gateway)
        if self.claims[gateway] == generation:
            self.acknowledged.add((gateway, generation, number))

    def list_claims(self) -> None:
        """The first step of a look; others may write before the second."""
        self.listed = dict(self.claims)
        self.settled = set(self.files)

    def look(self, hidden: int | None = None) -> Inputs:
        """The second step; ``hidden`` leaves out one of the files that appeared since the first, as a listing may."""
        unread: dict[str, dict[int, tuple[InboxFile, ...]]] = {}
        names = sorted(self.files)
        new = [name for name in names if name not in self.settled]
        if hidden is not None and new:
            names.remove(new[hidden % len(new)])
        for gateway, newest in self.listed.items():
            at = self.offset.inbox.get(gateway, InboxPosition())
            unread[gateway] = {
                generation: tuple(
                    InboxFile(number, self.files[name])
                    for name in names
                    if name[:2] == (gateway, generation)
                    and (number := name[2]) > (at.sequence if generation == at.generation else 0)
                )
                for generation in range(max(1, at.generation), newest + 1)
            }
        carried = {batch: self.carried[batch] for batch in range(self.offset.batch + 1, self.batch)}
        return Inputs(self.now, unread, carried, {batch: 10 * count for batch, count in carried.items()})

    def run(self, inputs: Inputs, again: Sequence[str], carried: int) -> bool:
        """Plan a batch, let late gateways write, run the batch perhaps again, and commit it; False without a batch."""
        end = next_offset(self.offset, inputs, self.max_rows)
        if end is self.offset:
            return False
        content = self.content(end)
        for gateway in again:
            self.write(gateway, 1, 1, False)
            self.write(gateway, 0, 1, False)
            assert self.content(end) == content
        self.read += content
        self.carried_read += [batch for batch in carried_batches(self.offset, end) if self.carried[batch]]
        self.carried[self.batch] = carried
        self.batch, self.offset, self.now = self.batch + 1, end, self.now + 1
        return True

    def content(self, end: InputOffset) -> list[Name]:
        """The files that the batch reads, by its offsets alone."""
        found = [
            (one.gateway, one.generation, number)
            for one in read_files(self.offset, end)
            for number in range(one.first, one.last + 1)
        ]
        assert all(name in self.files for name in found)
        return found

    def purge(self) -> None:
        """Delete the files that committed batches have read, and those of earlier generations."""
        for name in list(self.files):
            at = self.offset.inbox.get(name[0], InboxPosition())
            if name[1] < at.generation or (name[1] == at.generation and name[2] <= at.sequence):
                del self.files[name]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_each_acknowledged_file_is_read_once_in_order(data: st.DataObject) -> None:
    world = World(data.draw(st.sampled_from([1, 3, 100])))
    for _ in range(data.draw(st.integers(1, 40))):
        gateway = data.draw(st.sampled_from(GATEWAYS))
        match data.draw(st.sampled_from(["start", "write", "write", "write", "claims", "run", "run", "purge"])):
            case "start":
                world.start(gateway)
            case "write":
                world.write(
                    gateway, data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3)), data.draw(st.booleans())
                )
            case "claims":
                world.list_claims()
            case "run":
                inputs = world.look()
                assert not holes(world.offset, inputs.unread)
                hidden = world.look(data.draw(st.integers(0, 9)))
                if not holes(world.offset, hidden.unread) and data.draw(st.booleans()):
                    inputs = hidden
                late = data.draw(st.lists(st.sampled_from(GATEWAYS), max_size=2))
                world.run(inputs, late, data.draw(st.integers(0, 4)))
            case "purge":
                world.purge()
    world.list_claims()
    for _ in range(500):
        if not world.run(world.look(), [], 0):
            break
    else:
        raise AssertionError("the source does not come to rest")

    counts = Counter(world.read)
    assert world.acknowledged <= counts.keys()
    assert set(counts.values()) <= {1}
    for gateway in GATEWAYS:
        own = [name for name in world.read if name[0] == gateway]
        assert own == sorted(own)
    assert world.carried_read == [batch for batch in range(world.batch) if world.carried[batch]]
    assert next_offset(world.offset, world.look(), world.max_rows) is world.offset
