"""The sections of `gpu_check.py`, each a file with a function `run`."""
