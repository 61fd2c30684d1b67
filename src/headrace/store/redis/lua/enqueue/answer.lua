-- Enqueue, last part.
return existing
