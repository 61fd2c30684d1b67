"""The PostgreSQL store: a log of jobs, lanes of ready ranges, batch leases. See docs/internals/postgres.md."""
