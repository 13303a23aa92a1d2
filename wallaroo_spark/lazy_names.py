"""Public names of a package that load their modules on first use, because those need more than the package does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]], needs: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``; ``homes`` has the public names of each module.

    ``needs`` has the extras of names that need some. ``__getattr__`` raises AttributeError for another name,
    :class:`PackageMissingError` when a package of an extra is not installed, and any other ImportError of a module.
    """

    modules = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from wallaroo_spark.extras import needed_by

        with needed_by(f"{package}.{name}", *(needs or {}).get(name, ())):
            return getattr(importlib.import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, names
