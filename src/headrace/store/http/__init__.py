"""The http store: the store of a headrace server, used over HTTP."""
