-- Functions only: a day is set aside under a short lock and dropped afterwards, partitions are made without a look through
-- the default one, looks are bounded.
select;
