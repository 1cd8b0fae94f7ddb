"""Training text that models write: `mt backtranslate` and `mt distill`.

Takes text and models and gives a corpus as a TSV file, for distillation with a student's config.
"""
