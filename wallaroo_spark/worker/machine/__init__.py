"""What a worker decides: its state as a pure machine, with events in and instructions out."""
