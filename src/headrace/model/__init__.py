"""The values that every other package speaks of: jobs, lanes, leases, outcomes, times."""
