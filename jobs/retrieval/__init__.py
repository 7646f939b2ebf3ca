"""Indexes over DataFrames: made and grown, searched, and what metrics look up in them."""
