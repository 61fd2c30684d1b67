-- enqueue_one: as `enqueue_batch`, for one job that is due at once and has neither a key nor a unique lock. Most calls of an
-- application are like that, and they need no arrays to be taken apart and no look for an earlier call.
--
--   p_limits   keys joined by newline; null: none, and then p_lane is 0
--
-- Returns false if the batch exists. Nothing was done then, and `enqueue_batch` has the answer of the first call.
create or replace function headrace.enqueue_one(
    p_batch uuid, p_task text, p_payload bytea, p_options bytea, p_queue text, p_priority int2, p_tenant text,
    p_lane int8, p_limits text, p_now timestamptz default null
) returns bool language plpgsql as $$
declare
    v_seq    int8 := nextval('headrace.call_seq');
    v_limits text[] := string_to_array(p_limits, E'\n');
begin
    insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload, tenant, lane, limits, options)
    values (p_batch, v_seq, coalesce(p_now, clock_timestamp()), 0, p_priority, p_queue, p_task, p_payload,
        nullif(p_tenant, ''), nullif(p_lane, 0), v_limits, p_options)
    on conflict do nothing;
    if not found then return false; end if;
    insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, limits)
    values (v_seq, p_lane, p_batch, 0, 0, p_priority, 0, 0, 0, false, p_queue, p_tenant, v_limits);
    insert into headrace.tally (ready, enqueued, queue) values (1, 1, p_queue);
    return true;
end $$;
