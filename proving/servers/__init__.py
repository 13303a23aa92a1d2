"""Real servers for the tests of sinks; each is a process of one run, listens on loopback and keeps no data."""
