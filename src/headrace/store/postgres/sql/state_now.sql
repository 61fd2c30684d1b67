-- state_now: the state of a job now, without its worker; null: there is no such job.
create or replace function headrace.state_now(p_batch uuid, p_ord int4, out state text, out enqueued_at timestamptz)
language plpgsql stable as $$
declare
    j headrace.job;
    v_ended int2;
begin
    select * into j from headrace.job b where b.batch = p_batch and b.ord = p_ord;
    if not found then return; end if;
    enqueued_at := j.enqueued_at;
    select e.state into v_ended from headrace.ending_of(p_batch, p_ord) e;
    if found then
        state := case v_ended when 1 then 'done' when 2 then 'dead' else 'cancelled' end;
        return;
    end if;
    perform from headrace.ready x
    where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
        and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord
    order by x.hi limit 1;
    if found then
        state := 'ready';
        return;
    end if;
    perform from headrace.scheduled x where x.batch = p_batch and x.hi >= p_ord and x.lo <= p_ord order by x.hi limit 1;
    if found then
        state := 'scheduled';
        return;
    end if;
    perform from headrace.blocked x where x.batch = p_batch and x.hi >= p_ord and x.lo <= p_ord order by x.hi limit 1;
    state := case when found then 'blocked' else 'running' end;
end $$;
