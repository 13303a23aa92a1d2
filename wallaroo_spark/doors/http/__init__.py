"""The HTTP door: requests whose bodies become rows, and which are answered when these are committed."""
