"""What a person or a scheduler starts: sessions, paths, settings and DataFrames."""
