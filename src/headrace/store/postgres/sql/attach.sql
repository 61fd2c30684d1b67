-- attach: keep a stored job where it is until this transaction ends, and return its state: 0 it has not ended, 1 done, 2 dead,
-- 3 cancelled; null: there is no such job.
--
-- The end of a job, its retry and its deletion lock one of these rows, too, and look for members and for jobs that wait in a later
-- statement. So they see what this transaction adds, or this transaction sees what they did.
create or replace function headrace.attach(p_id uuid) returns int2 language plpgsql as $$
declare
    j       headrace.job;
    v_state int2;
    v_token uuid;
begin
    for v_try in 1 .. 200 loop
        select * into j from headrace.job b where b.batch = headrace.id_batch(p_id) and b.ord = headrace.id_ord(p_id);
        if not found then return null; end if;
        perform from headrace.ready x
        where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
            and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord
        order by x.hi limit 1 for key share;
        if found then return 0; end if;
        perform from headrace.scheduled x
        where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi limit 1 for key share;
        if found then return 0; end if;
        perform from headrace.blocked x
        where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi, x.gate limit 1 for key share;
        if found then return 0; end if;
        -- As in `ending_of`. A range that is split meanwhile is looked for again.
        select e.state into v_state from headrace.ending e
        where e.batch = j.batch and e.ord >= j.ord >> 5 << 5 and e.ord <= j.ord and coalesce(e.hi, e.ord) >= j.ord
        for key share;
        if found then return v_state; end if;
        v_token := headrace.lease_of(j.batch, j.ord);
        if v_token is not null then
            -- A settlement whose transaction cannot see what this one adds must fail. The changed lease makes it fail.
            update headrace.lease l set cause = l.cause where l.token = v_token;
            if headrace.lease_of(j.batch, j.ord) = v_token then return 0; end if;
        elsif v_try > 1 then
            -- It moves right now.
            perform pg_sleep(0.005);
        end if;
    end loop;
    raise exception 'job % keeps moving', p_id using errcode = '40001';
end $$;

-- lease_of: the token of the lease that holds a job; null: none does.
create or replace function headrace.lease_of(p_batch uuid, p_ord int4) returns uuid language plpgsql as $$
begin
    return (
        select l.token from headrace.lease l
        cross join lateral (
            select x.*, sum(x.hi - x.lo + 1) over (order by x.o) - (x.hi - x.lo + 1) as base
            from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality x(batch, lo, hi, o)
        ) r
        where l.r_batch @> array[p_batch] and r.batch = p_batch and p_ord between r.lo and r.hi
            and (l.gone is null or get_bit(l.gone, (r.base + p_ord - r.lo)::int4) = 0)
        limit 1);
end $$;
