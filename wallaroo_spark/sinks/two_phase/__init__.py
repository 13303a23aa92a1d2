"""Two-phase commit of a query's batches, in the driver: votes, the decision log, and the coordinator."""
