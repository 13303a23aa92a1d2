"""Public names of a package that load their modules on first use, because those need more than the package does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], needs: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``; ``homes`` names the module of each public name.

    ``needs`` has the extras of names that need some. ``__getattr__`` raises AttributeError for another name,
    :class:`PackageMissingError` when a package of an extra is not installed, and any other ImportError of a module.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from wallaroo_spark.extras import needed_by

        with needed_by(f"{package}.{name}", *(needs or {}).get(name, ())):
            return getattr(importlib.import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
