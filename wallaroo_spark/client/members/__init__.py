"""Members of groups and of stages: their connections and their deliveries."""
