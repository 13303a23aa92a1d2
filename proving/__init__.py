"""Programs that check the whole product; a person or a script runs them, pytest does not. README.md lists them."""
