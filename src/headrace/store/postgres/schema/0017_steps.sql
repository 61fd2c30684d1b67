-- Finished steps of tasks: the journals of their jobs.
create table headrace.step (
    id     int8 generated always as identity,   -- the order in which they were written
    batch  uuid not null,
    at     timestamptz not null,
    ord    int4 not null,
    number int4 not null,
    name   text collate "C" not null,
    digest bytea not null,
    value  bytea,                               -- null: None
    primary key (batch, ord, name, number)
);
