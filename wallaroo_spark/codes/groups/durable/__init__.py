"""Codes of the engine of durable streams, a file for each part."""
