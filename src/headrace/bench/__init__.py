"""The benchmark: every store measured by the same workloads. `benchmarks/` in the repository adds the floors."""
