"""For headrace's and users' tests: a clock that tests control, and temporary servers."""
