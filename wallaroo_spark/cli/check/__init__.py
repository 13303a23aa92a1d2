"""``wallaroo-spark check``: whether a receiver could run here, told before it runs."""
