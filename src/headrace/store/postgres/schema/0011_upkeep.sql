-- The workers of each group that do the upkeep now, and until when they have it without another heartbeat.
-- After a crash of the server it is empty, and the next heartbeats fill it.
-- The successor of this function answers one column more.
drop function if exists headrace.promote(int4, timestamptz);
create unlogged table headrace.upkeep (
    workers text        collate "C" not null,
    worker  uuid        not null,
    until   timestamptz not null,
    primary key (workers, worker)
);
create index upkeep_worker on headrace.upkeep (worker);
