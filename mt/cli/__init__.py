"""The command line: each command parses its options, loads the config and calls one function."""
