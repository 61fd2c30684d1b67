"""What a process needs from its system: signals, event loop, log, addresses."""
