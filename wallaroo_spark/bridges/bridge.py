"""A bridge: the settings of a source that another program keeps, its streams, and what it promises."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from wallaroo_spark.bridges.streams import BridgedStream
from wallaroo_spark.connector import Backoff
from wallaroo_spark.protocol import MAX_INSTANCE_BYTES
from wallaroo_spark.settings import check_all


@dataclass(frozen=True)
class Promise:
    """What a bridge promises, as the page says it."""

    reference: str
    """A stream's point of reference."""
    told: str
    """What the source is told behind a commit."""
    killed: str
    """What happens to messages when the bridge is killed at any moment and started again."""


@dataclass(eq=False)
class Bridge(ABC):
    """A source that another program keeps. Its fields are a table of settings (:mod:`wallaroo_spark.settings`)."""

    promise: ClassVar[Promise]
    """What it promises."""
    extra: ClassVar[str] = ""
    """The extra that installs its client; empty: none is needed."""

    def __post_init__(self) -> None:
        check_all(self)
        self.retry = Backoff()
        """The delays before the source is asked again for its streams, and when to give up."""

    @property
    @abstractmethod
    def place(self) -> str:
        """A short name of what is read, without secrets; it is the same from run to run."""

    @abstractmethod
    def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The streams, as they appear; it ends when none can appear any more. Its end closes the client."""

    def instance(self, kind: str) -> str:
        """The name of the connector, unless the user gives one: it does not depend on the host."""
        name = f"bridge/{kind}/{self.place}"
        if len(name.encode()) <= MAX_INSTANCE_BYTES:
            return name
        return f"bridge/{kind}/{hashlib.blake2b(self.place.encode(), digest_size=16).hexdigest()}"
