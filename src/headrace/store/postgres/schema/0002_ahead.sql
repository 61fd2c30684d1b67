-- Functions only: `ahead` is new.
select;
