-- Ends of jobs that lie far apart, such as links of many chains: one row for those of one settlement, until a later transaction
-- sorts them into headrace_ending (unsorted.py). There is no index, so that such a settlement writes one page of them. Processes
-- of an earlier version must be stopped before this step: they take these jobs for running ones.
create table headrace_unsorted (
    seq integer primary key,        -- the order of settlements, from 1, because a transaction that sorts takes all of them
    runs text not null,             -- JSON array of numbers, each lo << 10 | size - 1
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    finished_at integer not null,
    worker integer not null,
    took integer not null
);
