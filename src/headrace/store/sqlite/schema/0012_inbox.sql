-- Enqueue calls of one plain job, which wait here until the next transaction that needs them moves them into the tables of
-- jobs (inbox.py). There is no index, so that such a call writes one page. Processes of an earlier version do not see these
-- jobs: they start when a process of this version has moved them, at the latest when the one that wrote them is idle.
create table headrace_inbox (
    seq integer primary key,        -- the order of calls, from 1, because a transaction that moves jobs moves all of them
    id blob not null,               -- the batch's UUID, 16 bytes
    at integer not null,            -- when it was enqueued
    queue text not null,
    priority integer not null,
    tenant text not null,
    task text not null,
    options blob,
    payload blob not null
);
