"""Target lines and their references in, a judgement out: scores that say how they came about."""
