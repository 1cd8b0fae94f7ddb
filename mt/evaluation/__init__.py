"""Evaluation of translations.

Takes: target lines and their references. Gives: scores with their signatures.
"""
