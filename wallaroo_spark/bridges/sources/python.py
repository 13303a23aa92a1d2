"""A source of the user's own, from a file of Python."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.bridges.bridge import Bridge, Promise
from wallaroo_spark.bridges.streams import BridgedStream
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import Kind, row


@dataclass(eq=False)
class PythonBridge(Bridge):
    """Send the records of your own SOURCE, a FILE.py:NAME or MODULE:NAME.

    NAME is called with the ARGUMENTS, which are texts, and returns a BridgedStream or a list of them.

    Examples:
        wallaroo-spark bridge python sensors.py:Sensors /dev/ttyUSB0 --workers host-a:7100
    """

    promise = Promise("the stream's own", "what its `acknowledge` does", "what its `records` returns again")

    source: str = field(metadata=row(Kind.TEXT))
    """The file or module, and the name in it."""
    arguments: tuple[str, ...] = field(default=(), metadata=row(Kind.NAMES))
    """What the name is called with."""

    @property
    def place(self) -> str:
        """The name, with its arguments."""
        return " ".join([self.source, *self.arguments])

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """What the call returns."""
        made = self._callable()(*self.arguments)
        found = [made] if isinstance(made, BridgedStream) else list(made)
        wrong = next((one for one in found if not isinstance(one, BridgedStream)), None)
        if wrong is not None:
            raise ConfigurationError(
                f"{self.source} returns {type(wrong).__name__}, which is no BridgedStream; make it a subclass of "
                "wallaroo_spark.bridges.BridgedStream",
                code="argument-type",
            )
        yield found

    def _callable(self) -> Any:
        place, _, name = self.source.rpartition(":")
        try:
            names = runpy.run_path(place) if place.endswith(".py") else vars(importlib.import_module(place))
            return names[name]
        except (OSError, ModuleNotFoundError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"the source {self.source!r} is not there ({type(error).__name__}: {error}); write FILE.py:NAME or "
                "MODULE:NAME, with a name that the file has",
                code="source-unknown",
                source=self.source,
            ) from error
