"""The worker: its pure state, the buffer of uncommitted rows, the listener, the Flight server and ``run_worker``."""
