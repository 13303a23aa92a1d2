"""The page of an application of durable streams. Source: ``docs/pipelines/see.md#the-page``."""
