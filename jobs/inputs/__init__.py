"""Files of samples and questions, read, checked and written once."""
