"""Where a location is, as Spark takes it, and the file system that it is on."""
