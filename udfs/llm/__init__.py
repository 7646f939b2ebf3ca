"""Content-addressed requests to language models: keys, templates, limits, calls and files."""
