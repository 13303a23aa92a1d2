"""The engine of an application: its source, the operator of its keys, and the application in the driver.

The public name loads on first use, because tasks need less than the driver does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from wallaroo_spark.engine.application.application import Application

__all__ = ["Application"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"wallaroo_spark.engine.application.application": __all__},
    {"Application": ("spark", "pipelines", "embedded")},
)
