-- Results with a time to live, so that `prune` can drop their bytes when it is over. What stays is an empty result, which
-- says that there was one; a job without a time to live has no entry.
create index ending_result_until on headrace.ending (result_until) where result_until is not null and octet_length(result) > 0;

-- Workers that were ever there, by a number that is short in every ended job. A name outlives its worker's presence.
create table headrace.runner (
    no   int4        generated always as identity primary key,
    id   uuid        not null unique,
    name text        not null,
    at   timestamptz not null
);
-- Whose lease the attempt was in that ended the job, and since when.
alter table headrace.ending add column worker int4, add column claimed_at timestamptz;
