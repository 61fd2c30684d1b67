-- enqueue: one job, from SQL: triggers, psql, any language; inside the caller's transaction.
--
--   select headrace.enqueue('billing.charge', '[7, "acme"]');
--   select headrace.enqueue('report', kwargs => '{"day": "2026-01-01"}', queue => 'slow', delay => '5 minutes');
--
--   task, args, kwargs   what to run: the same arguments that Python would pass
--   queue, priority, tenant   the lane; a task's Python options are not known here
--   delay | run_at       not before
--   key                  one job per (task, key) within a day; the same key with other arguments is an error
--
-- Returns the job's id (of the existing job if the key was used before). Arguments are stored as JSON, which workers
-- read, too.
--
-- Waiting workers wake when the transaction commits. Commits with a NOTIFY wait for each other, so clients send it on a
-- separate connection. Here there is none, and a transaction with a NOTIFY cannot be prepared (two-phase commit).
create or replace function headrace.enqueue(
    task text, args jsonb default '[]', kwargs jsonb default '{}', queue text default 'default', priority int4 default 0,
    tenant text default '', delay interval default null, run_at timestamptz default null, key text default null
) returns uuid language plpgsql as $$
#variable_conflict use_variable
declare
    v_batch   uuid := headrace.new_batch();
    v_payload bytea;
    v_done    record;
begin
    if task is null or task !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$' then
        raise exception '% is not a valid task name: 1 to 128 of A-Z a-z 0-9 _ . - and no . or - first', quote_nullable(task) using errcode = '22023';
    elsif queue is null or queue !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        raise exception '% is not a valid queue name: 1 to 63 of a-z 0-9 _ . - and a letter or digit first', quote_nullable(queue) using errcode = '22023';
    elsif tenant is null or tenant !~ '^[!-~]{0,128}$' then
        raise exception '% is not a valid tenant: up to 128 printable ASCII characters, no spaces', quote_nullable(tenant) using errcode = '22023';
    elsif priority is null or priority not between -1000 and 1000 then
        raise exception 'priority = %: a whole number from -1000 to 1000', quote_nullable(priority::text) using errcode = '22023';
    elsif jsonb_typeof(args) is distinct from 'array' then
        raise exception 'args must be a JSON array, e.g. [1, "two"]' using errcode = '22023';
    elsif jsonb_typeof(kwargs) is distinct from 'object' then
        raise exception 'kwargs must be a JSON object, e.g. {"name": 1}' using errcode = '22023';
    elsif delay is not null and run_at is not null then
        raise exception 'give delay or run_at, not both' using errcode = '22023';
    elsif delay < interval '0' then
        raise exception 'delay = %: not before now', delay using errcode = '22023';
    elsif key is not null and length(key) not between 1 and 256 then
        raise exception 'key: 1 to 256 characters' using errcode = '22023';
    end if;
    v_payload := convert_to(jsonb_build_object('args', args, 'kwargs', kwargs)::text, 'UTF8');
    select * into v_done from headrace.enqueue_batch(
        v_batch, array[task], array[v_payload], null,
        array[0], array[queue], array[priority::int2], array[tenant], array[0::int8], array[null::text],
        array[run_at], array[delay],
        case when key is not null then array[0] end, array[key], array[sha256(v_payload)], array[interval '1 day'],
        null, null, null, null, null);
    if v_done.conflict_ord is not null then
        raise exception 'key % of task % already made job % with other arguments: use another key, or the same arguments',
            quote_literal(key), quote_literal(task), v_done.conflict_id using errcode = 'unique_violation';
    end if;
    if v_done.existing_id is null then
        if coalesce(run_at, now() + delay, now()) <= now() then
            perform pg_notify('headrace', queue);
        elsif coalesce(run_at, now() + delay) < clock_timestamp() + interval '1 minute' then
            -- Workers find a job that is due later in time. When this one is due, `promote` says.
            perform pg_notify('headrace', '!0');
        end if;
    end if;
    return coalesce(v_done.existing_id[1], headrace.job_id(v_batch, 0));
end $$;
