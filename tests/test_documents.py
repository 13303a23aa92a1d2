"""Every document, section and path that the repository cites is in the repository."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {".venv", ".git", "build", "dist", "node_modules", "__pycache__"}
SUFFIXES = {".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".conf", ""}
TOP = ("wallaroo_spark", "tests", "proving", "docs", "scripts", "conf", "jobs", "examples")

CITATION = re.compile(
    r"(?<![\w./-])((?:[\w.-]+/)*[\w.-]+\.md)(#[\w-]+)?(?:``,\s+(rules?\s+[\d,\s]+(?:(?:and|to)\s+\d+)?))?"
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE_LINK = re.compile(r"\[`([\w.-]+/[\w./-]*\.\w+)`\]\(([^)\s]+)\)")
PATH = re.compile(rf"(?<![\w./-])(?:\./)?((?:{'|'.join(TOP)})/[\w./*-]*[\w*/])")
ROLE = re.compile(r":(?:mod|class|func|meth|data|attr|exc):`~?([\w.]+)`")
NAMED_TEST = re.compile(r"`?(tests/[\w/]+\.py)(?:`,\s+`|::)((?:(?:Test|test_)\w+)(?:::test_\w+)?)")
PLACEHOLDER = "NAME"
COMMENT = re.compile(r"(?:^|\s)# .*$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def files() -> list[Path]:
    """All texts of the repository, as a clone or an unpacked archive has them."""
    found = list[Path]()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ELSEWHERE and not name.startswith(".")]
        found += [Path(folder, name) for name in names]
    return sorted(path for path in found if path.suffix in SUFFIXES and path.stat().st_size < 1 << 20)


IN_WHEEL = "wallaroo_spark/share/"
"""Where the wheel has the files of the repository; only the build makes this folder."""


@cache
def text_of(path: Path) -> str:
    """The text of a file; of a Python file its comments and docstrings."""
    text = path.read_text(encoding="utf-8", errors="replace").replace(IN_WHEEL, "")
    return "\n".join(said(text)) if path.suffix == ".py" else text


def said(source: str) -> Iterator[str]:
    """Comments and docstrings of a Python file."""
    yield from COMMENT.findall(source)
    # A docstring is a text that stands alone, as one behind an attribute is; only statements are looked at.
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            held = getattr(node, block, ())
            waiting += held if isinstance(held, list) else ()


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as they are made where Markdown is shown."""
    seen: Counter[str] = Counter()
    found = set()
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for title in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def missing(target: Path, anchor: str) -> str:
    """Why there is nothing to go to; empty where there is."""
    if not target.exists():
        return f"there is no {target.relative_to(ROOT) if target.is_relative_to(ROOT) else target}"
    if anchor and anchor.lstrip("#") not in anchors(target):
        return f"{target.relative_to(ROOT)} has no section {anchor}"
    return ""


def rules() -> int:
    """How many rules the architecture has."""
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("\n## Rules\n")[1].split("\n## ")[0]
    return len(re.findall(r"^\d+\. ", section, re.MULTILINE))


def wrong_citations(text: str) -> Iterator[str]:
    """The citations in a text (not a page) that lead nowhere."""
    for name, anchor, numbers in CITATION.findall(text):
        why = missing(ROOT / name, anchor)
        if why:
            yield f"{name}{anchor}: {why}"
        elif numbers and max(map(int, re.findall(r"\d+", numbers))) > rules():
            yield f"{name}{anchor}: there are {rules()} rules, and {numbers} is cited"
    yield from (f"{name}: it is no folder of the repository" for name in re.findall(r"\bseeds/\w*", text))


def wrong_links(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        why = missing((page.parent / name).resolve() if name else page, anchor)
        if why:
            yield f"{target}: {why}"


def wrong_names(text: str) -> Iterator[str]:
    """The links that are called by the path of another file than the one they lead to."""
    for name, target in FILE_LINK.findall(text):
        if not target.partition("#")[0].endswith(name):
            yield f"{name}: it leads to {target}"


def wrong_paths(text: str) -> Iterator[str]:
    """The paths of the repository that a text names and that are not there."""
    for name in PATH.findall(text):
        wanted = name.rstrip("/.")
        if PLACEHOLDER not in wanted and not any(ROOT.glob(wanted)):
            yield f"{wanted}: there is no such file or folder"
    for name, tests in NAMED_TEST.findall(text):
        path = ROOT / name
        for test in tests.split("::") if path.exists() else ():
            if not re.search(rf"^ *(?:class|(?:async )?def) {test}\b", path.read_text(), re.MULTILINE):
                yield f"{name}: there is no {test}"


def wrong_roles(path: Path) -> Iterator[str]:
    """References in the docstrings of a module, relative or from the package on, that lead to nothing."""
    for name in ROLE.findall(text_of(path)):
        dots = len(name) - len(name.lstrip("."))
        parts = name.lstrip(".").split(".")
        if dots:
            folder = path.parents[dots - 1]
        elif parts[0] == "wallaroo_spark":
            folder = ROOT
        else:
            continue
        while parts and (folder / parts[0]).is_dir():
            folder = folder / parts.pop(0)
        module = folder / "__init__.py"
        if parts and (folder / f"{parts[0]}.py").exists():
            module = folder / f"{parts.pop(0)}.py"
        if parts and not re.search(rf"\b{parts[0]}\b", module.read_text(encoding="utf-8")):
            yield f"{name}: there is no {parts[0]} in {module.relative_to(ROOT)}"


def test_every_citation_leads_to_a_place_in_the_repository() -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in files()
        if path.suffix != ".md" and (found := list(wrong_citations(text_of(path))))
    }

    assert wrong == {}


def test_the_links_of_all_pages_lead_somewhere() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    wrong = {str(page.relative_to(ROOT)): found for page in pages if (found := list(wrong_links(page)))}

    assert len(pages) > 10
    assert wrong == {}


def test_a_link_has_the_name_of_the_file_that_it_leads_to() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    wrong = {str(page.relative_to(ROOT)): found for page in pages if (found := list(wrong_names(text_of(page))))}

    assert list(wrong_names("[`a/b.py`](../a/b.py), [`a/b.py`](../a/c.py)")) == ["a/b.py: it leads to ../a/c.py"]
    assert wrong == {}


def test_the_paths_that_pages_and_code_name_are_there() -> None:
    wrong = {str(path.relative_to(ROOT)): found for path in files() if (found := list(wrong_paths(text_of(path))))}

    assert wrong == {}


def test_the_tests_that_pages_name_are_there() -> None:
    """Also where a page says the file with a word of its own."""
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    known = {name for source in sources for name in re.findall(r"^ *(?:async )?def (test_\w+)", source, re.MULTILINE)}
    known |= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    pages = [path for path in files() if path.suffix == ".md"]
    wrong = {
        str(page.relative_to(ROOT)): found
        for page in pages
        if (found := sorted(set(re.findall(r"`(test_\w+)`", FENCE.sub("", page.read_text()))) - known))
    }

    assert wrong == {}


def test_docstrings_refer_to_modules_and_names_that_are_there() -> None:
    modules = [path for path in files() if path.suffix == ".py" and path.is_relative_to(ROOT / "wallaroo_spark")]
    wrong = {str(path.relative_to(ROOT)): found for path in modules if (found := list(wrong_roles(path)))}

    assert wrong == {}


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.exists():
            reached.add(page)
            targets = (target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8")))
            waiting += [(page.parent / target).resolve() for target in targets if target.endswith(".md")]

    assert sorted(set((ROOT / "docs").rglob("*.md")) - reached) == []


def test_a_document_a_section_and_a_rule_that_are_not_there_are_found() -> None:
    elsewhere, seed = "design" + ".md", "seeds" + "/000"
    text = f"``{elsewhere}``, ``docs/protocol.md#nowhere``, ``docs/architecture.md#rules``, rules 1 and 99; ``{seed}``"

    assert len(list(wrong_citations(text))) == 4
    assert list(wrong_citations("``docs/protocol.md#framing``; ``docs/architecture.md#rules``, rules 1 to 7.")) == []
    assert len(list(wrong_paths("tests/" + "nothing.py and `tests/test_documents.py`, `test_of_nothing`"))) == 2
    assert len(list(wrong_paths("`tests/test_documents.py" + "::test_of_nothing`"))) == 1
    assert len(list(wrong_paths("tests/test_documents.py" + "::TestNothing::test_of_nothing"))) == 2
    assert list(wrong_paths("`tests/test_documents.py" + "::test_anchors_are_those_of_the_headings`")) == []


def test_anchors_are_those_of_the_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n## The wire, as *all* need it\n\n```\n# no heading\n```\n\n## Twice\n\n## Twice\n")

    assert anchors(page) == {"a-page", "the-wire-as-all-need-it", "twice", "twice-1"}
