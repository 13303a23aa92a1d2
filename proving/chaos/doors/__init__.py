"""The clients of doors as senders of a run, and the judge of what each of them was promised."""
