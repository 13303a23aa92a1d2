"""Programs that prove the whole: run by hand or by a script, not by pytest. README.md beside this file lists them."""
