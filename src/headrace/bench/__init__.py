"""The benchmark: every store measured by the same workloads, each beside the raw floor of its engine."""
