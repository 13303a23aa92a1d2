"""The sink that is another program: it is reached over protocol v3 with the roles reversed."""
