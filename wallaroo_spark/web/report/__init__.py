"""The record of a run, and the self-contained file that shows it."""
