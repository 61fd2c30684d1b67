-- take_one: as `take_straight`, for one job, which is simpler, because claims of one job are frequent. Plain lanes
-- only.
--
--   p_patient   take from the tenant whose turn it is, or nothing if other claims hold its ranges
--
-- `leader`: the tenant whose turn it is, if p_patient (null: nothing waits).
create or replace function headrace.take_one(
    p_queue text, p_priority int2, p_from text, p_wrap text, p_owed int4, p_weights jsonb, p_alone bool, p_patient bool,
    out n_tenant text[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out more bool, out ring_tenant text, out ring_owed int4, out leader text
) language plpgsql as $$
#variable_conflict use_column
declare
    v record;
begin
    got := 0; stop := false; suspect := false; more := false;
    if p_patient then
        leader := coalesce(
            (select r.tenant from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant >= p_from and r.lane = 0
                order by r.tenant, r.lane, r.seq, r.hi limit 1),
            (select r.tenant from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant < p_wrap and r.lane = 0
                order by r.tenant, r.lane, r.seq, r.hi limit 1));
        select r.ctid as tid, r.tenant, r.batch, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect into v from headrace.ready r
        where r.queue = p_queue and r.priority = p_priority and r.tenant = leader and r.lane = 0
        order by r.seq, r.hi limit 1 for update skip locked;
        if not found then return; end if;
    else
        select r.ctid as tid, r.tenant, r.batch, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect into v from headrace.ready r
        where r.queue = p_queue and r.priority = p_priority and r.tenant >= p_from and r.lane = 0
        order by r.tenant, r.lane, r.seq, r.hi limit 1 for update skip locked;
        if not found then
            select r.ctid as tid, r.tenant, r.batch, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect into v from headrace.ready r
            where r.queue = p_queue and r.priority = p_priority and r.tenant < p_wrap and r.lane = 0
            order by r.tenant, r.lane, r.seq, r.hi limit 1 for update skip locked;
            if not found then return; end if;
        end if;
    end if;
    stop := v.suspect; suspect := v.suspect and p_alone;
    if stop and not suspect then return; end if;
    n_tenant := array[v.tenant]; n_batch := array[v.batch]; n_lo := array[v.lo]; n_hi := n_lo; got := 1;
    if v.attempt + v.failures + v.crashes > 0 then
        n_attempt := array[v.attempt]; n_failures := array[v.failures]; n_crashes := array[v.crashes];
    end if;
    ring_tenant := v.tenant;
    ring_owed := case when p_owed > 0 and v.tenant = p_from then p_owed - 1 when p_weights is null then 0
        else greatest(1, coalesce((p_weights ->> v.tenant)::int4, 1)) - 1 end;
    if v.lo = v.hi then
        delete from headrace.ready r where r.ctid = v.tid;
    else
        update headrace.ready r set lo = v.lo + 1 where r.ctid = v.tid;
    end if;
end $$;
