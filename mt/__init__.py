"""`mt`: train, run and judge encoder-decoder Transformers for translation."""

__version__ = "0.3.0"
