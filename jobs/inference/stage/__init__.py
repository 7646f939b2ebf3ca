"""Run a stage: its requests, its results, the settings of its calls, and checks before the first call."""
