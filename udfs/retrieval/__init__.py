"""What facts are looked up in: models that run in tasks, and what they make of texts."""
