"""Real servers for the tests of sinks, each a process of this run, on loopback and without anything kept."""
