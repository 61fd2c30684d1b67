"""Every operator verb, once: Python, the command line and the HTTP server parse, call these, and print."""
