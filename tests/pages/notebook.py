"""Runs a notebook's code cells, in order and without a Jupyter kernel, and keeps their text and pictures.

``python -m tests.pages.notebook`` runs those in ``examples/`` and writes their outputs anew, pictures included.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import matplotlib

from tests.conftest import ROOT

Cell = dict[str, Any]

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
DOTS_PER_INCH = 80


def read(path: Path) -> dict[str, Any]:
    """A notebook as its file has it."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    """The cells with code, from the top."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: Cell) -> str:
    """The output of a cell, as the notebook stores it."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def pictures(cell: Cell) -> list[bytes]:
    """The PNG pictures that a cell has drawn, as the notebook keeps them."""
    return [
        base64.b64decode("".join(output["data"]["image/png"]))
        for output in cell["outputs"]
        if output["output_type"] == "display_data"
    ]


def run(notebook: dict[str, Any], name: str) -> None:
    """Run all code cells in one module's names, and put their outputs in place of the old ones."""
    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), start=1):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec", dont_inherit=True), names)
        cell["execution_count"] = number
        cell["outputs"] = [*_stream(out.getvalue()), *_figures()]


def _stream(text: str) -> list[dict[str, Any]]:
    if not text:
        return []
    return [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}]


def _figures() -> list[dict[str, Any]]:
    from matplotlib import pyplot

    outputs = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(
            file, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None}
        )
        data = {"image/png": base64.b64encode(file.getvalue()).decode() + "\n", "text/plain": ["<Figure>"]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    pyplot.close("all")
    return outputs


def main() -> None:
    """Write the outputs of all notebooks anew."""
    for path in NOTEBOOKS:
        notebook = read(path)
        run(notebook, path.name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(code_cells(notebook))} cells")


if __name__ == "__main__":
    main()
