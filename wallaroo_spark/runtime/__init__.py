"""Long Spark jobs, which run for as long as their owner (a receiver or a topic), and the services in their tasks."""
