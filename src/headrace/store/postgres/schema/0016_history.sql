-- Rollups: what became of the attempts of a task in a minute or an hour, as counts and packed histograms.
create table headrace.history (
    start  int4 not null,   -- minutes since 1970
    id     uuid not null,   -- made by the writer
    span   int2 not null,   -- minutes
    queue  text not null,
    task   text not null,
    ending text not null,   -- model/rollup.py, AttemptEnd
    count  int8 not null,
    wait   bytea not null,
    run    bytea not null,
    sent   int8 not null,   -- seconds since 1970
    primary key (start, id)
);

-- One row, once rollups were folded. A reader of several pages learns from it whether they belong together.
create table headrace.history_fold (
    one   bool not null primary key default true check (one),
    folds int8 not null
);
