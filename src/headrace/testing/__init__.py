"""For tests of headrace and of its users: a clock that tests control."""
