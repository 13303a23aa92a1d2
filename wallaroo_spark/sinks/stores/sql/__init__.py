"""The sink ``sql``: its part of the two-phase commit, the table in its database, and the values of rows."""
