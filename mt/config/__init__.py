"""Config files and `--set` in; a typed, frozen config out, or one error with all faults."""
