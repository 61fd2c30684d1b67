"""What a process needs from its system: signals, event loop, the thread for sync calls, log, addresses."""
