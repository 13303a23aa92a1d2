"""Pipelines over durable streams: the declared objects, their schema, and the controller that runs them."""
