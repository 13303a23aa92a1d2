"""The operator: the controller of each key in a task of Spark, with the functions of stages.

Source: ``docs/pipelines/engine.md#the-operator``.
"""
