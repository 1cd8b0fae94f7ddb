"""Sentence pairs become token ids on disk, and those become padded batches."""
