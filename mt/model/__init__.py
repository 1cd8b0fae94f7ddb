"""Batches of ids become log-probabilities, and weights become files and back.

Takes: `model` and vocabulary sizes of a config, batches of ids. Gives: scores over the target vocabulary,
checkpoints, a table of every parameter.
"""
