-- Functions only: a day is set aside under a short lock and dropped afterwards, partitions are made without a scan of
-- the default one, and reads are bounded.
select;
