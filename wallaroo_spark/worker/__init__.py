"""The worker: pure state, the buffer of what is not committed, the listener, the Flight server, ``run_worker``."""
