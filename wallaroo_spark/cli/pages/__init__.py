"""Pages of the documentation that are written from tables in the code and from the help of commands."""
