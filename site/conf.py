"""The documentation as a site: Sphinx builds the project's own pages. ``./scripts/site`` runs it."""

from __future__ import annotations

import html
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from pygments.lexers.special import TextLexer

import wallaroo_spark

ROOT = Path(__file__).resolve().parent.parent
MERMAID = ROOT / "build" / "mermaid"
"""Where ``scripts/site`` puts the program that draws diagrams; without it they stay text."""
_project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = _project["name"]
release = version = wallaroo_spark.__version__
copyright = ""
language = "en"
extensions = ["myst_parser"]
root_doc = "site/index"
include_patterns = [
    "site/*.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/*/*.md",
    "examples/*.md",
    "proving/*.md",
]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_title = f"{project} {version}"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_extra_path = ["root"]
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["static", str(MERMAID)] if MERMAID.is_dir() else ["static"]
html_js_files = (
    [("mermaid.min.js", {"defer": "defer"}), ("diagrams.js", {"defer": "defer"})] if MERMAID.is_dir() else []
)
html_css_files = ["site.css"]
pygments_style = "default"
pygments_dark_style = "github-dark"

_FOLDER_LINK = re.compile(r"\[([^\]\n]+)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def links_to_folders(_app: Any, page: str, source: list[str]) -> None:
    """Show a link to a folder of the repository as the folder's page, or as its text where it has none."""
    here = (ROOT / page).parent

    def shown(found: re.Match[str]) -> str:
        text, target = found.group(1), found.group(2)
        path = here / target
        if not path.is_dir():
            return found.group(0)
        return f"[{text}]({target.rstrip('/')}/README.md)" if (path / "README.md").is_file() else text

    source[0] = _FOLDER_LINK.sub(shown, source[0])


class Diagram(Directive):
    """A diagram in Mermaid's language, which the browser draws."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The text of the diagram as it is."""
        return [nodes.raw("", f'<pre class="mermaid">{html.escape(chr(10).join(self.content))}</pre>', format="html")]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_directive("mermaid", Diagram)
    app.add_lexer("frames", TextLexer)
    app.connect("source-read", links_to_folders)
