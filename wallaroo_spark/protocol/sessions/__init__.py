"""The two sides of a session as pure machines: session states, stream states and credits."""
