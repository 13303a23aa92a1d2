"""What a worker holds: the rows of each stream that are not committed."""
