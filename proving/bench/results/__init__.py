"""The results of a run: figures and goals, tables and pictures."""
