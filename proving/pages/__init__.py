"""The pages of ``docs/`` that are made from tables of the code; ``python -m proving.pages`` writes all of them."""
