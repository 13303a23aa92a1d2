"""The live state of an application."""
