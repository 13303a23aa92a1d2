"""Simulated time, the networks between parts, and the calls that fail."""
