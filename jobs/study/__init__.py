"""Compare metrics with human labels. No metric imports this package.

A study reads its labels and judgements into memory, and computes its measures with NumPy (methods, section 7).
"""
