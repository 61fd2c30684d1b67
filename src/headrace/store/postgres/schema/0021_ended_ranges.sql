-- Neighbours of one lease that ended well are one row of `ending`, the range ord..hi of their batch. A range does not go beyond
-- a multiple of 32, and ranges do not overlap: the row of a job is among at most 32 entries of the primary key.
alter table headrace.ending add column hi int4;     -- null: the job `ord` alone, as in all rows before this version
