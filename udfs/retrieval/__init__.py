"""Cut, embed, store and search texts, and classify pairs of texts."""
