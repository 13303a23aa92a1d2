"""``wallaroo-spark check``: checks whether a receiver can run here, before it is started."""
