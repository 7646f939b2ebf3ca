"""Statistics from counts, so that no cost grows with the number of samples."""
