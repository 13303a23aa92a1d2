"""Simulated histories of Aqueduct: two machines, the network between them, random applications, and a judge.

``python -m proving.aqueduct --seeds N``; ``docs/reliability/methods.md`` says what is checked.
"""
