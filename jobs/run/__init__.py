"""A run's life: its output, session, locks, interrupts, progress and lines on a terminal."""
