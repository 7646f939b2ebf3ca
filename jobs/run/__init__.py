"""A run's life: its output, session, locks, interrupts and progress."""
