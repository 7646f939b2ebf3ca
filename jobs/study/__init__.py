"""Metrics held against people and against each other; no metric imports it.

Spark counts here and the driver finishes (methods, section 7): what reaches it are counts of distinct values.
"""
