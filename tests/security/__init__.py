"""The listening ports of a worker and of its Redis, tried without the key: they refuse, and say nothing secret."""
