"""Dead letters: looked at by bug (letters), replayed and discarded (moves), recorded when they go (dropped), `app.dead` (app)."""
