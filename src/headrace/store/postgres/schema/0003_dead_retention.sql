-- Functions only: `prune_day` and `prune_rows` accept a retention of dead letters per queue.
select;
