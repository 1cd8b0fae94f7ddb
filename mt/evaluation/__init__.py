"""Evaluation of translations.

Takes: target lines of one or more systems and their references. Gives: scores with their
signatures, confidence intervals, and which differences between systems are significant.
"""
