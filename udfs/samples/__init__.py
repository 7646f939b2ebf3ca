"""Reads files of samples: bytes -> records -> samples. `jobs.samples` plans and checks."""
