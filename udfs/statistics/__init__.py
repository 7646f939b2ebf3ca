"""Statistics from counts. No cost grows with the number of samples."""
