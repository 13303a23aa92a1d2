"""Doors: clients that people already have, what they reach, and what the doors cost."""
