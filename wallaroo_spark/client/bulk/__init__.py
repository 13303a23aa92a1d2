"""Publishing of many events on one connection."""
