"""A run directory becomes one HTML page: facts read from disk, pictures, sentences, the page."""
