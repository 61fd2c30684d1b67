-- The workers of each group that do the upkeep now, and until when they have it without another heartbeat.
create table headrace_upkeep (
    workers text    not null,
    worker  blob    not null,
    until   integer not null,
    primary key (workers, worker)
) without rowid;
