"""Metrics and systems held against people and each other.

Spark counts here and the driver finishes (methods, section 7): what reaches it are counts of distinct values.
"""
