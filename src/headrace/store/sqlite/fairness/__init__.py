"""Which ranges a claim takes: turns of queues, tenants and lanes, and what limits leave free."""
