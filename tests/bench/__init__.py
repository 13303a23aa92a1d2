"""How fast it is: one command, one report. ``python -m tests.bench --help``."""
