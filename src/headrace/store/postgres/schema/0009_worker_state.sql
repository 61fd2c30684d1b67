-- Why a worker starts no job now, so that `explain` can say so.
alter table headrace.worker add column hindered text[] not null default '{}';
-- Its successor has one more argument with a default; beside it the calls of older workers would be ambiguous.
drop function if exists headrace.present(uuid, text, text[], int4, int4, text, timestamptz, text[], timestamptz);
