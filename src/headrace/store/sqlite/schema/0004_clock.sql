-- One time for all processes of a file, whatever their own clocks say (timekeeper.py). Processes of an earlier version go on
-- by their own clocks. Times are microseconds.
create table headrace_clock (
    id integer primary key check (id = 1),
    boot text not null,             -- which start of the machine `ahead` is for
    ahead integer not null,         -- the file's time minus the time since that start
    kept integer not null,          -- the file's time when this row was written
    doubt integer,                  -- the value that a process with another clock would give to `ahead`
    doubted_at integer              -- since when, in time since the start
);
