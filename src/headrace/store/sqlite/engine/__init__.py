"""The file and its threads: connections, transactions, locks, time, wake-ups and the schema."""
