"""Metrics and health of an application. Source: ``docs/pipelines/see.md#where-the-figures-come-from``."""
