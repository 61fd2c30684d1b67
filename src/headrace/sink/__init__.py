"""The history sink: copies every end of a job from the store to a table of ClickHouse, while the store stays the only buffer."""
