-- Results with a time to live, so that `prune` can drop their bytes when it is over. An empty result stays, which shows
-- that there was one. A job without a time to live has no entry.
create index ending_result_until on headrace.ending (result_until) where result_until is not null and octet_length(result) > 0;

-- All workers so far, by a number that takes little space in every ended job. A name is kept longer than its worker's
-- presence.
create table headrace.runner (
    no   int4        generated always as identity primary key,
    id   uuid        not null unique,
    name text        not null,
    at   timestamptz not null
);
-- The worker whose attempt ended the job, and since when.
alter table headrace.ending add column worker int4, add column claimed_at timestamptz;
