"""Reads files of samples: bytes -> records -> samples. `jobs.inputs.samples` plans and checks."""
