"""Run stages over DataFrames: `stage` prepares and reads, `store` keeps completions, `backends` carry out requests."""
