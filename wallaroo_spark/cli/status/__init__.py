"""``wallaroo-spark status``: the state of a receiver, of topics and of sinks, as tables and as JSON."""
