"""What runs in Spark for as long as its owner does: long jobs, and the services in their tasks."""
