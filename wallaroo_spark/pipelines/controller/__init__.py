"""The controller of one partition of a stream: events in, instructions out. Source: ``docs/pipelines/design.md``."""
