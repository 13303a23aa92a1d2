"""How fast it is: one command, one report. ``python -m proving.bench --help``."""
