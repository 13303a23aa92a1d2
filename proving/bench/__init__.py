"""Measures the speed of each part: one command, one report. ``python -m proving.bench --help``."""
