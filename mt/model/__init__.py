"""The Transformer, from batches of ids to scores over the vocabulary, and its weights as files."""
