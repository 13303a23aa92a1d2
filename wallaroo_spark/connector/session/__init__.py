"""A session with a worker: the connection, the addresses to try, and the task that keeps a session alive."""
