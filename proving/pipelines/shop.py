"""The schema of a simulated history: streams and pipelines that are declared, changed, deleted and declared anew."""

from __future__ import annotations

import random
from collections.abc import Sequence

from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, RetryPlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.declarations import StartPoint

ORDERS, SHIPMENTS, DEAD = "shop/orders", "shop/shipments", "shop/dead"
FIRST_PARTITIONS = {ORDERS: 2, SHIPMENTS: 2, DEAD: 1}
MOST_PARTITIONS = {ORDERS: 3, SHIPMENTS: 3, DEAD: 1}
KEYS = [PartitionKey(stream, number) for stream, most in MOST_PARTITIONS.items() for number in range(most)]
GHOST = PartitionKey("shop/ghost", 0)
"""A partition that is not declared: it refuses each statement."""
TRIGGER = "order.created"
POISON = b"poison"
"""The data of an event with which no stage and no group succeeds that has a limit of attempts."""
FULFIL = "shop/fulfil"
NOTIFY = "shop/notify"
INPUT = {FULFIL: ORDERS, NOTIFY: SHIPMENTS}
"""The input stream of each pipeline."""
NEWEST = "newest"
"""The durable group that begins with the newest record."""
TAIL = "tail"
"""The ephemeral group."""
GROUPS = {ORDERS: ("billing", NEWEST, TAIL), SHIPMENTS: ("audit", NEWEST, TAIL)}
"""The groups of each stream."""
_BEGINNING = StartPoint(location="beginning")
TIMEOUTS = (0, 500, 2000)
"""Milliseconds within which a delivery has to be settled."""


class Schema:
    """The declared streams and pipelines, with the version that said so last."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._window = dice.choice((5_000, 120_000))
        self.version = 0
        """Number of the newest version."""
        self.partitions = dict(FIRST_PARTITIONS)
        """Stream → number of its partitions; none for a deleted one."""
        self._counts = {stream: [count] for stream, count in FIRST_PARTITIONS.items()}
        """Stream → the numbers of partitions that it had since it was declared last."""
        self.pipelines: dict[str, PipelinePlan] = {}
        """The declared pipelines."""
        self._known = dict(FIRST_PARTITIONS)
        """Stream → the most partitions that it ever had."""
        self._retries: dict[str, RetryPlan] = {}
        """Stream → the treatment of deliveries of its groups that did not succeed."""
        for stream in GROUPS:
            self.change_retry(stream)
        for name in INPUT:
            self.change(name)

    @property
    def keys(self) -> list[PartitionKey]:
        """The partitions that are declared."""
        return [key for stream in self.partitions for key in self.of(stream)]

    def of(self, stream: str) -> list[PartitionKey]:
        """The partitions of a stream; none of a deleted one."""
        return [PartitionKey(stream, number) for number in range(self.partitions.get(stream, 0))]

    def known(self, stream: str) -> int:
        """The number of partitions that a gateway knows, which may be late."""
        counts = self._counts[stream]
        return counts[-1] if self._dice.random() < 0.7 else self._dice.choice(counts)

    def declarations(self) -> list[tuple[PartitionKey, PartitionPlan | None]]:
        """The declaration of each partition that was ever declared, in a new version."""
        self.version += 1
        found: list[tuple[PartitionKey, PartitionPlan | None]] = []
        for stream, most in self._known.items():
            now = self.partitions.get(stream, 0)
            retry = self._retries.get(stream, RetryPlan())
            plan = PartitionPlan(tuple(self._pipelines_on(stream)), self._window, partitions=now, retry=retry)
            found += [(PartitionKey(stream, number), plan if number < now else None) for number in range(most)]
        return found

    def _pipelines_on(self, stream: str) -> Sequence[PipelinePlan]:
        return [plan for name, plan in sorted(self.pipelines.items()) if INPUT[name] == stream]

    def change(self, name: str) -> None:
        """A pipeline is declared, for the first time, or with other stages and another limit."""
        self.pipelines[name] = self._fulfil() if name == FULFIL else self._notify()

    def change_retry(self, stream: str) -> None:
        """The groups of a stream get another retry policy and time limit."""
        dice = self._dice
        letters = DEAD if DEAD in self.partitions and dice.random() < 0.9 else ""
        attempts = dice.choice((0, 2, 3))
        self._retries[stream] = RetryPlan(attempts, dice.choice((0, 200)), 500, letters, timeout=dice.choice(TIMEOUTS))

    def delete_pipeline(self, name: str) -> None:
        """A pipeline is deleted."""
        del self.pipelines[name]

    def delete_stream(self, stream: str) -> None:
        """A stream is deleted, with the pipelines that it begins; what names it otherwise changes."""
        del self.partitions[stream], self._counts[stream]
        for other in GROUPS:
            self.change_retry(other)
        for name in [*self.pipelines]:
            if INPUT[name] == stream:
                self.delete_pipeline(name)
            else:
                self.change(name)

    def declare_stream(self, stream: str) -> None:
        """A deleted stream is declared anew, or one gets a partition more; its pipelines may be declared later."""
        self.partitions[stream] = min(self.partitions.get(stream, 0) + 1, MOST_PARTITIONS[stream])
        self._counts.setdefault(stream, []).append(self.partitions[stream])
        self._known[stream] = max(self._known[stream], self.partitions[stream])

    def _fulfil(self) -> PipelinePlan:
        """The pipeline on orders: two entry stages, one of them in Spark, then two tiers."""
        dice = self._dice
        attempts = dice.choice((0, 2))
        letters = DEAD if DEAD in self.partitions and dice.random() < 0.9 else ""
        streams = (SHIPMENTS,) if SHIPMENTS in self.partitions else ()
        stages = [
            StagePlan(
                "charge",
                given_root=True,
                output_required=True,
                attempts=attempts,
                delay=dice.choice((0, 200)),
                longest_delay=500,
                dead_letter=letters if attempts else "",
                timeout=dice.choice(TIMEOUTS),
            ),
            StagePlan(
                "reserve",
                given_root=True,
                output_required=True,
                function="shop.stock:reserve",
                attempts=3,
                dead_letter=letters,
                stream_outputs=streams,
                stream_output_partitions=tuple(self.partitions[stream] for stream in streams),
            ),
            StagePlan("ship", (), ("charge", "reserve"), stream_outputs=streams, timeout=dice.choice(TIMEOUTS)),
        ]
        if dice.random() < 0.7:
            stages.append(StagePlan("tidy", ("ship",), given_root=dice.random() < 0.5))
        if dice.random() < 0.3:
            stages.append(StagePlan("extra", ("charge",)))
        return PipelinePlan(FULFIL, tuple(stages), (TRIGGER,), dice.choice((1, 2, 3, 10)), _BEGINNING)

    def _notify(self) -> PipelinePlan:
        """The pipeline on shipments: one stage, in some histories in Spark."""
        dice = self._dice
        function, timeout = dice.choice(("", "shop.post:mail")), dice.choice(TIMEOUTS)
        mail = StagePlan("mail", given_root=True, function=function, timeout=timeout)
        return PipelinePlan(NOTIFY, (mail,), (), dice.choice((1, 2, 50)), _BEGINNING)
