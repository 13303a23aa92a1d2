"""Locations (paths and URIs) as Spark resolves them, and their file systems."""
