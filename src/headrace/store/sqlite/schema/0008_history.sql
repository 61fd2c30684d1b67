-- Rollups: what became of the attempts of a task in a minute or an hour, as counts and packed histograms.
create table headrace_history (
    start    integer not null,      -- minutes since 1970
    id       blob    not null,      -- 16 bytes, made by the writer
    span     integer not null,      -- minutes
    queue    text    not null,
    task     text    not null,
    ending   text    not null,      -- model/rollup.py, AttemptEnd
    count    integer not null,
    wait     blob    not null,
    run      blob    not null,
    sent     integer not null,      -- seconds since 1970
    primary key (start, id)
) without rowid;

-- One row, once rollups were folded. A reader of several pages learns from it whether they belong together.
create table headrace_fold (
    one   integer primary key check (one = 1),
    folds integer not null
);
