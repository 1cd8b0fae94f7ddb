"""Models for and from other programs, each checked by asking both for the same probabilities.

Takes: a model with its tokenizer and config. Gives: a folder that the other program reads.
"""
