"""Settings, endpoint presets, prompts and the demo samples, as package data."""
