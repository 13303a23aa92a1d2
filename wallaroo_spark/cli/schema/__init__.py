"""The verbs for the schema and the tokens of an application."""
