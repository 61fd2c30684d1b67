"""The server measured over HTTP, beside a bare route that stores nothing."""
