"""The reference page of all codes, written from their table."""

from __future__ import annotations

from wallaroo_spark.codes import GROUPS, CodeEntry, CodeGroup

HEAD = """\
# Errors

Every error of this package ends with its code in brackets:

    Error: cannot listen on 127.0.0.1:4040: the address is in use; free the address, … [cannot-listen]

A code is stable: programs may compare it, as `error.code` of the exception. The causes in `wallaroo-spark status` and
the kinds of protocol violations in logs and metrics are codes of the same table. On the command line

    wallaroo-spark explain cannot-listen

explains a code, also when it is given a whole pasted message or the name of an alert, and `wallaroo-spark explain`
alone lists all of them. This page is generated from the table `wallaroo_spark/codes/codes.toml` by
`python -m proving.pages`. A test finds errors without a code, and codes that nothing
uses (`tests/codes/test_raise_sites.py`).

"""


def errors_page() -> str:
    """The whole page as Markdown: the groups, and below each of them its codes, in the order of the table."""
    contents = "".join(f"- [{group.title}](#{_anchor(group.title)})\n" for group in GROUPS.values())
    return HEAD + contents + "".join(_group(group) for group in GROUPS.values())


def _group(group: CodeGroup) -> str:
    return f"\n## {group.title}\n\n{group.about}\n" + "".join(_entry(entry) for entry in group.entries)


def _entry(entry: CodeEntry) -> str:
    cure = f"- *What to do:* {entry.cure}\n" if entry.cure else "- *What to do:* Nothing; this is a healthy state.\n"
    also = f"- *Also:* {', '.join(f'`{name}`' for name in entry.also)}\n" if entry.also else ""
    page = entry.page.removeprefix("docs/")
    title = page.partition("#")[0]
    return f"\n### {entry.code}\n\n{entry.title}\n\n- *Cause:* {entry.cause}\n{cure}{also}- *More:* [{title}]({page})\n"


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-")
