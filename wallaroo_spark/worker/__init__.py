"""The worker: pure state, the buffer of uncommitted rows, the listener, the Flight server, ``run_worker``."""
