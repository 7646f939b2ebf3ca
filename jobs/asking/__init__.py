"""From rows to completions and back: stages over DataFrames, the store, the answering process."""
