"""The rows that a worker holds: those of each stream that are not committed."""
