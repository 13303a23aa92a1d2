"""``wallaroo-spark run``: an application of durable streams, run until it is interrupted."""
