"""For tests, ours and users': a clock that can be turned and throw-away servers."""
