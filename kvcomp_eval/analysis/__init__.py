"""Analyses of what a method did while decoding."""
