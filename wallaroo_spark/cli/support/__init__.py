"""What helps a person to find what is wrong: ``wallaroo-spark check`` and ``support``."""
