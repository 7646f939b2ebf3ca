"""The fact graph."""
