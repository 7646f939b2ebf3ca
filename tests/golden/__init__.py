"""Frozen outputs of the product: compute them again and compare every cell."""
