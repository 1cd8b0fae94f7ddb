"""Texts and models become a corpus as a TSV file, for `mt backtranslate` and `mt distill`."""
