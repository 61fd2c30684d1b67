"""The values that every other package uses: jobs, lanes, leases, outcomes, times."""
