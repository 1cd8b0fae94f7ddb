"""The Transformer, and its weights as files.

Takes: the `model` section of a config, vocabulary sizes, batches of ids. Gives: scores over the
target vocabulary, and model folders.
"""
