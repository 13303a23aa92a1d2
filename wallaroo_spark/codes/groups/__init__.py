"""The explanations, one file for each group of codes."""
