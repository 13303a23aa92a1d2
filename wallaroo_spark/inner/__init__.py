"""What callers of a worker need: the client of its inner port, whom it trusts, and the rows that come from it."""
