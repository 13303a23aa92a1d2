"""From connectors to a sink through a real Spark."""
