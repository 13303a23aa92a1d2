"""The notebook's cells run from the top, and their text and pictures are those in the file."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.pages.notebook import NOTEBOOKS, code_cells, pictures, printed, read, run

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_outputs_of_a_notebook_are_those_in_the_file(path: Path) -> None:
    shown = read(path)
    again = copy.deepcopy(shown)

    run(again, path.name)

    assert [printed(cell) for cell in code_cells(again)] == [printed(cell) for cell in code_cells(shown)], (
        "run: python -m tests.pages.notebook"
    )
    assert [len(pictures(cell)) for cell in code_cells(again)] == [len(pictures(cell)) for cell in code_cells(shown)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_pictures_and_is_of_a_format_that_readers_know(path: Path) -> None:
    notebook = read(path)

    drawn = [picture for cell in code_cells(notebook) for picture in pictures(cell)]

    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert drawn
    assert all(picture.startswith(PNG) for picture in drawn)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
