"""The shop of ``examples/shop`` on this machine, with everything in it killed at random, and its judge."""
