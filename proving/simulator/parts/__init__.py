"""The parts of a history: connectors, workers, driver, query, registry, checkpoint and what they share."""
