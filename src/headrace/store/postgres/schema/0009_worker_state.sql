-- Why a worker starts no job now, for `explain`.
alter table headrace.worker add column hindered text[] not null default '{}';
-- The new function has one more argument with a default. Calls of older workers would be ambiguous if both existed.
drop function if exists headrace.present(uuid, text, text[], int4, int4, text, timestamptz, text[], timestamptz);
