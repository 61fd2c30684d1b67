"""The store over HTTP, for workers and apps that use an http:// store."""
