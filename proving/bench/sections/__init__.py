"""The sections of the bench: each measures one thing, and returns its figures."""
