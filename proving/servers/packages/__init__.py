"""Where the programs of servers come from: packages that are fetched once per clone."""
