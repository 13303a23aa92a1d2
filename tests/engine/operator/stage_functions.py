"""Functions of stages, for tests."""

from __future__ import annotations

from typing import Any

import pandas as pd

calls: list[int] = []
"""Rows of each call of :func:`upper` and :func:`careful`."""


def upper(rows: pd.DataFrame) -> pd.Series[Any]:
    """The data of the root event in capitals."""
    calls.append(len(rows))
    return rows["root_event"].map(lambda event: event["data"].upper())


def careful(rows: pd.DataFrame) -> pd.DataFrame:
    """Fails if one of the rows is bad."""
    calls.append(len(rows))
    ids = rows["root_event"].map(lambda event: event["id"])
    if "bad" in set(ids):
        raise ValueError("there is a bad row")
    return pd.DataFrame({"output": ids}, index=rows.index)


def given(rows: pd.DataFrame) -> pd.Series[Any]:
    """What it was given, as JSON."""
    return pd.Series([{name: str(value) for name, value in row.items()} for row in rows.to_dict("records")], rows.index)


def backwards(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows in another order, with their index."""
    return pd.DataFrame({"output": rows["instance"].map(str)}, index=rows.index).iloc[::-1]


def nothing(rows: pd.DataFrame) -> None:
    """No output at all."""


def a_number(rows: pd.DataFrame) -> int:
    """No DataFrame."""
    return 7


def too_few(rows: pd.DataFrame) -> pd.DataFrame:
    """Leaves out all rows but one."""
    return pd.DataFrame({"output": ["x"]}, index=rows.index[:1])


def typo(rows: pd.DataFrame) -> pd.DataFrame:
    """A column with another name."""
    return pd.DataFrame({"outptu": ["x"] * len(rows)}, index=rows.index)


def values(rows: pd.DataFrame) -> pd.Series[Any]:
    """One value of each kind, chosen by the id of the root event."""
    kinds: dict[str, Any] = {
        "bytes": b"\x00\xff",
        "text": "gruß",
        "json": {"total": 3, "items": [1, None]},
        "none": None,
        "nan": float("nan"),
        "object": object(),
    }
    return pd.Series([kinds[event["id"]] for event in rows["root_event"]], rows.index, dtype=object)


def emit(rows: pd.DataFrame) -> pd.DataFrame:
    """Two events for one stream, and one for another in each second row."""
    events = [[{"type": "a", "data": {"n": int(n)}}, {"type": "b", "id": f"b{n}"}] for n in rows["instance"]]
    other = [{"type": "c", "data": "text"} if n % 2 else None for n in rows["instance"]]
    return pd.DataFrame({"shipments": events, "other/letters": other}, index=rows.index)


behaviour: dict[str, Any] = {"raise": None, "output": None, "events": None, "content_type": None}
"""What :func:`evil` raises or returns."""


def evil(rows: pd.DataFrame) -> pd.DataFrame:
    """Raises the error or returns the values of :data:`behaviour` for a root event with the id ``bad``."""
    outputs: list[Any] = []
    types: list[Any] = []
    for root in rows["root_event"]:
        is_bad = root["id"] == "bad"
        if is_bad and behaviour["raise"] is not None:
            raise behaviour["raise"]
        outputs.append(behaviour["output"] if is_bad else "fine")
        types.append(behaviour["content_type"] if is_bad else None)
    return pd.DataFrame(
        {"output": pd.Series(outputs, rows.index, object), "content_type": pd.Series(types, rows.index, object)}
    )


def evil_events(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the event of :data:`behaviour` for a root event with the id ``bad``."""
    events = [
        behaviour["events"] if root["id"] == "bad" else [{"type": "letter", "data": "fine"}]
        for root in rows["root_event"]
    ]
    return pd.DataFrame({"other/letters": pd.Series(events, rows.index, object)}, rows.index)


def hundredfold(rows: pd.DataFrame) -> pd.Series[Any]:
    """Changes what it is given, and the frame itself; raises for a price below zero."""
    for root in rows["root_event"]:
        root["data"]["price"] *= 100
    rows.sort_index(ascending=False, inplace=True)
    rows["sum"] = [root["data"]["price"] for root in rows["root_event"]]
    if (rows["sum"] < 0).any():
        raise ValueError("a price below zero")
    return rows["sum"]


def pass_on(rows: pd.DataFrame) -> pd.Series[Any]:
    """The data of the root event as a part of the output."""
    return pd.Series([{"it": root["data"]} for root in rows["root_event"]], rows.index, object)
