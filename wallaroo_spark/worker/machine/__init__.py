"""The decisions of a worker: its state as a pure machine, with events in and instructions out."""
