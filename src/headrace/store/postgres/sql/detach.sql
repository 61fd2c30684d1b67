-- detach: move one unsettled job of a lease into a lease of its own, as its position 0.
--
-- The old lease treats it as settled. False: the lease is lost, or no longer holds that job. A repeated call with the
-- same fresh token returns the same answer.
create or replace function headrace.detach(p_token uuid, p_position int4, p_fresh uuid) returns bool language plpgsql as $$
declare
    l headrace.lease;
    r record;
    v_size int4;
begin
    if exists (select from headrace.lease where token = p_fresh) then return true; end if;
    select * into l from headrace.lease where token = p_token for update;
    if not found or p_position < 0 or (l.gone is not null and p_position < length(l.gone) and get_bit(l.gone, p_position) = 1) then
        return false;
    end if;
    select u.batch, (u.lo + p_position - u.base)::int4 as ord, u.attempt, u.failures, u.crashes, u.queue into r
    from (
        select x.*, sum(x.hi - x.lo + 1) over (order by x.o) - (x.hi - x.lo + 1) as base
        from unnest(l.r_batch, l.r_lo, l.r_hi, l.r_attempt, l.r_failures, l.r_crashes, l.r_queue)
            with ordinality x(batch, lo, hi, attempt, failures, crashes, queue, o)
    ) u where p_position between u.base and u.base + u.hi - u.lo;
    if not found then return false; end if;
    -- A user's transaction settles this job. If that made the number of the worker, all other settlements of the worker would wait for it.
    perform headrace.new_runner(l.worker) where not exists (select from headrace.runner w where w.id = l.worker);
    if l.limited then
        insert into headrace.hold (token, units, key) select p_fresh, u.units, u.key from headrace.units(l, array[p_position]) u;
        perform headrace.give_back(l, array[p_position]);
    end if;
    if l.unsettled = 1 then
        delete from headrace.lease where token = p_token;
    else
        select sum(hi - lo + 1) into v_size from unnest(l.r_lo, l.r_hi) u(lo, hi);
        update headrace.lease set unsettled = l.unsettled - 1,
            gone = set_bit(coalesce(l.gone, repeat('0', v_size)::varbit), p_position, 1)
        where token = p_token;
    end if;
    insert into headrace.lease (token, worker, until, claimed_at, cause, suspect, unsettled, limited, queues, r_batch, r_lo, r_hi, r_attempt,
        r_failures, r_crashes)
    values (p_fresh, l.worker, l.until, l.claimed_at, l.cause, l.suspect, 1, l.limited, array[l.queues[coalesce(r.queue, 1)]], array[r.batch],
        array[r.ord], array[r.ord], case when r.attempt <> 1 then array[r.attempt] end,
        case when r.failures <> 0 then array[r.failures] end, case when r.crashes <> 0 then array[r.crashes] end);
    return true;
end $$;
