"""Every door of a running worker and of its Redis, tried without the key: it stays shut, and says nothing secret."""
