"""The check of English prose, its reference model, and the files over budget."""
