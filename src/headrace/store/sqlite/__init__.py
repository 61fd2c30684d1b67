"""The SQLite store: one file, several processes, one writer at a time."""
