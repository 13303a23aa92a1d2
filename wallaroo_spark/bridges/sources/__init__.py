"""A module for each source of a bridge. Its client is imported when the bridge runs."""
