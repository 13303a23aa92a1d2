"""Doors: other wire protocols in front of the worker's buffer, whose messages become rows of the same table."""
