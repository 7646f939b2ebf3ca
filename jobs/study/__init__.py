"""Metrics and systems held against people and each other."""
