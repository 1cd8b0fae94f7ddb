"""`mt`: train, run and judge encoder-decoder Transformers for translation."""

__version__ = "0.2.0"
