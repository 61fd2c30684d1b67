"""Jobs into a store, and their results out of it."""
