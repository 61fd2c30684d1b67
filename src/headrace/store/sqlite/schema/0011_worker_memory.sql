-- The bytes of memory that a worker occupies.
alter table headrace_worker add column memory integer;
