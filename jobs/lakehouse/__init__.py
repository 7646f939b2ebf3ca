"""Tables of Delta and Iceberg: their files at one version as an input, and the tables of runs added to them by date."""
