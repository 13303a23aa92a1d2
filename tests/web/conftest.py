"""The one browser of a session of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium. A missing one is an error with the way to install it, and no skip."""
    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.close()
