"""Scores of answers: against references, against the uncompressed model, and their uncertainty.

Importing a module of this package is cheap: torch, nltk, statsmodels and the scorers are imported when first used.
"""
