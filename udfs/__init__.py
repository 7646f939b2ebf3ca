"""What runs on workers, row by row or batch by batch."""
