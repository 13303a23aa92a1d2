"""The faces: terminal, pages, Prometheus, JSON, DataFrames, report and health."""
