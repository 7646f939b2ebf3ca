"""Define, read and resolve the settings."""
