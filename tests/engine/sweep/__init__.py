"""Deaths of an application's processes at each step of a batch in a real Spark."""
