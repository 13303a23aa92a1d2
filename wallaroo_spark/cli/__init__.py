"""The command line: one file a verb. It may import anything, and nothing imports it."""
