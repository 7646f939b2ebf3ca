"""What a run found, in sums and in words: counts, means with intervals, failed requests, the lines at its end."""
