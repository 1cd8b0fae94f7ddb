"""`mt`: train, run and judge encoder-decoder Transformers for translation."""
