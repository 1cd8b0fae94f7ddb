"""From a model folder to the format of another runtime, proved by asking both for the same.

Takes: a model with its tokenizer and config. Gives: a folder that the other runtime reads.
"""
