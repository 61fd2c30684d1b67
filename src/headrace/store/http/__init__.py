"""The http store: a headrace server's store, from anywhere that can reach the server."""
