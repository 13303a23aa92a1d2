"""The schema of the random application, as documents, and its random changes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MAX_PARALLEL = 40
"""The greatest ``maxParallel`` that is ever declared."""
MOST_PARTITIONS = 5
FULFIL, COUNT = "rand/fulfil", "rand/count"
INPUT = {FULFIL: "rand/orders", COUNT: "rand/receipts"}
"""The input stream of each pipeline."""
_FIXED = """\
kind: Namespace
name: rand
---
kind: Stream
name: receipts
namespace: rand
partitions: 2
---
kind: Stream
name: failed
namespace: rand
---
kind: Stream
name: audit
namespace: rand
partitions: 2
---
kind: Pipeline
name: count
namespace: rand
inputStream: receipts
startPoint: {location: beginning}
stages:
  - name: count
    run: proving.application.functions:count
"""
_ORDERS = """\
kind: Stream
name: orders
namespace: rand
partitions: %d
idempotencyWindow: 6h
"""
_NOTES = """\
kind: Stream
name: notes
namespace: rand
"""
_FULFIL = """\
kind: Pipeline
name: fulfil
namespace: rand
inputStream: orders
triggers: [rand.order]
maxParallel: %d
startPoint: {location: beginning}
stages:
  - name: pay
    dependencies: [root_event]
    streamOutputs: [receipts]
    retry: {maxAttempts: %d, delay: 200ms, maxDelay: 1s, deadLetterStream: failed}
  - name: check
    dependencies: [root_event]
    run: proving.application.functions:check
    retry: {maxAttempts: 6, delay: 200ms, maxDelay: 1s, deadLetterStream: failed}
  - name: ship
    dependencies: [root_event, pay, check]
"""
_TIDY = """\
  - name: tidy
    after: [ship]
"""


@dataclass
class RandomSchema:
    """What is declared now."""

    dice: random.Random
    """Decides the changes."""
    partitions: int = 1
    """Partitions of the orders."""
    notes: bool = True
    """Whether the stream of notes is declared."""
    fulfil: bool = True
    """Whether the pipeline on orders is declared."""
    stages: dict[int, list[str]] = field(default_factory=dict)
    """Version → the stages of the pipeline on orders; none where it is not declared."""
    _tidy: bool = False

    def first(self) -> str:
        """The documents of the first version."""
        return "---\n".join([_FIXED, _ORDERS % self.partitions, _NOTES, self._fulfil()])

    def change(self) -> tuple[str, list[str], str]:
        """A random change: what it is, the words of the verb, and the documents of ``apply``."""
        kinds = ["pipeline"] * 3 + ["notes"] * 2 + ["limits"] * 2
        if self.partitions < MOST_PARTITIONS:
            kinds.append("partitions")
        kind = self.dice.choice(kinds)
        if kind == "partitions":
            self.partitions += 1
            return "partitions raised", ["apply"], _ORDERS % self.partitions
        if kind == "notes":
            self.notes = not self.notes
            if self.notes:
                return "stream declared anew", ["apply"], _NOTES
            return "stream deleted", ["delete", "stream", "rand/notes"], ""
        if kind == "pipeline" or not self.fulfil:
            self.fulfil = not self.fulfil
            if self.fulfil:
                return "pipeline declared anew", ["apply"], self._fulfil()
            return "pipeline deleted", ["delete", "pipeline", FULFIL], ""
        return "pipeline changed", ["apply"], self._fulfil()

    def restore(self) -> str:
        """Documents with which everything is declared again."""
        self.notes = self.fulfil = True
        return "---\n".join([_NOTES, self._fulfil()])

    def applied(self, version: int) -> None:
        """A version was written."""
        names = ["pay", "check", "ship", *(["tidy"] if self._tidy else [])]
        self.stages[version] = names if self.fulfil else []

    def _fulfil(self) -> str:
        self._tidy = self.dice.random() < 0.5
        text = _FULFIL % (self.dice.choice((5, 20, MAX_PARALLEL)), self.dice.choice((8, 12)))
        return text + (_TIDY if self._tidy else "")
