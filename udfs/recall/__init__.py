"""LongRecall's rules: facts out of texts, and which generated facts may entail a reference (methods, section 13)."""
