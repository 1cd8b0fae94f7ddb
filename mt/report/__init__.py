"""A run directory becomes one HTML page: a summary read from disk, pictures, sentences."""
