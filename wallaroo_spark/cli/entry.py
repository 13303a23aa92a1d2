"""The entry of the command ``wallaroo-spark``: an interrupt while the program is loaded ends it in one line, too."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the command line, run it, and end the process with its exit status."""
    try:
        from wallaroo_spark.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    run()
