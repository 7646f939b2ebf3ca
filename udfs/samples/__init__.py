"""Reads files of samples: bytes -> records -> samples. `untold.jobs.inputs.samples` plans and checks."""
