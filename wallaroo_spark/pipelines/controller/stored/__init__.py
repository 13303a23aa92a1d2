"""The stored state of a key: its entries and their format."""
