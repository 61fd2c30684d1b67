"""Server-sent events: what happens to jobs, for callers that listen."""
