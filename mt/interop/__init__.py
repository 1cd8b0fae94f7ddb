"""Models for and from other programs, each checked by asking both for the same probabilities."""
