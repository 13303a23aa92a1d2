"""The two sides of a session as pure machines: their states, their streams and their credits."""
