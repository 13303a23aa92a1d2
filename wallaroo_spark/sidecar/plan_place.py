"""The location of a receiver's plans: the driver passes it to its sources in a record in the registry.

A source runs beside the driver, in a process without a JVM gateway, and Spark does not tell it the checkpoint. Every
program that may read a receiver's status reads the record, so it has no credentials: if the file system needs
credentials, the source must find them by other means (an instance profile, ``AWS_…`` variables), or plans stay in the
offsets.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from wallaroo_spark.errors import WallarooError, one_line
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.plan_files import PlanFiles
from wallaroo_spark.storage.locations import Location, PortableLocation, for_tasks

log = one_line(logging.getLogger(__name__))

_SECRET = ("key", "token", "secret", "password")


def place_record(location: Location, spark: Any = None) -> str:
    """The record of a checkpoint's location; empty if a source cannot use the location. Raises no error."""
    try:
        place = for_tasks(location, spark)
        mark = SidecarFolder(location, spark=spark).mark()
    except WallarooError as error:
        log.warning("plans stand in the offsets, because sources cannot get the location of the checkpoint: %s", error)
        return ""
    uri = place.uri if isinstance(place, PortableLocation) else place
    settings = place.settings if isinstance(place, PortableLocation) else {}
    if "@" in uri.partition("://")[2].partition("/")[0] and not uri.startswith(("abfs:", "abfss:")):
        log.warning("plans stand in the offsets, because the checkpoint's URI holds credentials")
        return ""
    if ":" not in uri:
        uri = os.path.abspath(uri)
    known = {name: value for name, value in settings.items() if not any(word in name.lower() for word in _SECRET)}
    return json.dumps({"uri": uri, "settings": known, "mark": mark})


def plans_at(record: str, receiver: str) -> PlanFiles | None:
    """The plans of a receiver at the location in a record; None, with a warning, if this process cannot use it."""
    if not record:
        return None
    try:
        value = json.loads(record)
        place = PortableLocation(str(value["uri"]), dict(value["settings"]))
        found = SidecarFolder(place).read("identity")
        if found is not None and found.decode() == value["mark"]:
            return PlanFiles(place, receiver)
        problem: object = "the record belongs to another machine's file system"
    except (WallarooError, KeyError, TypeError, ValueError) as error:
        problem = error
    log.warning("plans stand in the offsets, because this source does not reach the checkpoint: %s", problem)
    return None
