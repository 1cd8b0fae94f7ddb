"""Outputs of systems and their references become scores, intervals, and tests of differences."""
