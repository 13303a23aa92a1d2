"""The parts of a history: connectors, workers, driver, query, registry, checkpoint and their common parts."""
