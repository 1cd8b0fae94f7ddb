"""Corpus files become sentence pairs."""
