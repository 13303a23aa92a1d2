"""The program as a process."""

from tests.cli.conftest import run

__all__ = ["run"]
