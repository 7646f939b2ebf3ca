"""The backends that carry out requests: the actor process, Spark's tasks, spools, Ray jobs and batches."""
