"""Sentence pairs that are unfit for training are dropped, and counted."""
