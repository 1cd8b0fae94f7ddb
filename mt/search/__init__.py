"""Source ids become hypotheses: models ready to decode, search, and scores of given targets."""
