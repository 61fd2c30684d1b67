-- The bytes of memory that a worker occupies.
alter table headrace.worker add column memory int8;
-- The new function has one more argument with a default. Calls of older workers would be ambiguous if both existed.
drop function if exists headrace.present(uuid, text, text[], int4, int4, text, timestamptz, text[], timestamptz, text[]);
