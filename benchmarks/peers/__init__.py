"""headrace beside other queues, on the same servers and in the same minutes: `python -m benchmarks.peers`."""
