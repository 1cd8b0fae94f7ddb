"""YAML and `--set` become a typed, frozen config, or one message with all faults."""
