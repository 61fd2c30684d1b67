"""The verbs of the Redis store."""
