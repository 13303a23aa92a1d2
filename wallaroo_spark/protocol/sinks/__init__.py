"""The frames, sessions and states of connector sinks: two-phase commits over the same wire."""
