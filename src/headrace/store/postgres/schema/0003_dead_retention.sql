-- Functions only: `prune_day` and `prune_rows` know queues that keep their dead letters for a time of their own.
select;
