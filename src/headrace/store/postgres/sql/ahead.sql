-- ahead: what a waiting job waits behind. No row if it does not wait.
--
-- Each count ends at p_limit. A range has one job or more, so at most p_limit ranges are read, in the order of the
-- index. The snapshot of the calling statement is used, so all counts belong to one moment.
create or replace function headrace.ahead(p_id uuid, p_limit int4, p_now timestamptz default null) returns table (
    lane int8, higher int8, suspect bool, paused_by text, paused_since timestamptz, paused_until timestamptz,
    tenant_by text, tenant_since timestamptz, tenant_until timestamptz, limited bool
) language plpgsql stable rows 1
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    j headrace.job;
    r record;
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    select b.* into j from headrace.job b
    where b.batch = headrace.id_batch(p_id) and b.ord = headrace.id_ord(p_id);
    if not found then return; end if;
    limited := false;
    select p.by, p.since, p.until into paused_by, paused_since, paused_until from headrace.pause p
    where p.kind = 'queue' and p.name = j.queue and (p.until is null or p.until > v_now);
    select p.by, p.since, p.until into tenant_by, tenant_since, tenant_until from headrace.pause p
    where p.kind = 'tenant' and p.name = coalesce(j.tenant, '') and (p.until is null or p.until > v_now);

    select x.lo, x.hi, x.suspect into r from headrace.ready x
    where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
        and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord
    order by x.hi limit 1;
    if found then
        suspect := r.suspect; limited := j.limits is not null;
        select least(coalesce(sum(n.hi - n.lo + 1), 0) + j.ord - r.lo, p_limit) into lane
        from (select x.lo, x.hi from headrace.ready x
            where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
                and x.lane = coalesce(j.lane, 0) and (x.seq, x.hi) < (j.seq, r.hi)
            order by x.seq, x.hi limit p_limit) n;
        select least(coalesce(sum(n.hi - n.lo + 1), 0), p_limit) into higher
        from (select x.lo, x.hi from headrace.ready x
            where x.queue = j.queue and x.priority > j.priority
            order by x.queue, x.priority desc limit p_limit) n;
        return next;
        return;
    end if;

    select x.suspect into r from headrace.scheduled x
    where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi limit 1;
    if found then
        suspect := r.suspect; lane := 0; higher := 0;
        return next;
    end if;
end $$;

-- blocked: the limit keys that would stop a claim of a job's lane now, and some of the jobs that hold their units.
create or replace function headrace.blocked(p_id uuid, p_now timestamptz default null) returns table (
    key text, concurrency int4, held int8, holders uuid[], opens_at timestamptz, never bool
) language plpgsql stable rows 1
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    s record;
    n record;
begin
    for s in
        select x.* from headrace.job j cross join lateral unnest(j.limits) with ordinality k(text, o)
        cross join lateral headrace.split_limit(k.text) x
        where j.batch = headrace.id_batch(p_id) and j.ord = headrace.id_ord(p_id) order by k.o
    loop
        select * into n from headrace.limit_now(s.name, s.key, s.cost, v_now);
        continue when not found;
        key := s.key; never := false;
        if n.closed then
            concurrency := null; held := 0; holders := null; opens_at := n.opens_at;
            return next;
            continue;
        end if;
        if (n.one and n.held > 0) or n.held + s.cost > n.concurrency then
            concurrency := case when n.one and n.held > 0 then s.cost else n.concurrency end; held := n.held; opens_at := null;
            never := s.cost > concurrency;
            holders := array(
                select headrace.job_id(j.batch, j.ord)
                from (
                    -- Only the first leases, up to 1,000 jobs in all. A lease may have 1,000 jobs.
                    select l.*, sum(l.unsettled) over (order by l.token) - l.unsettled as jobs_before
                    from (select h.token from headrace.hold h where h.key = s.key order by h.token limit 5) t
                    join headrace.lease l on l.token = t.token
                ) l
                cross join lateral (
                    select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
                    from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality u(batch, lo, hi, o)
                ) r
                join headrace.job j on j.batch = r.batch and j.ord between r.lo and r.hi
                where l.jobs_before < 1000 and (l.gone is null or get_bit(l.gone, (r.base + j.ord - r.lo)::int4) = 0)
                    and (s.key = any (j.limits) or exists (
                        select from unnest(j.limits) k(text), headrace.split_limit(k.text) x
                        where k.text like '%@%' and x.key = s.key))
                limit 5);
            return next;
        end if;
        if n.opens_at is not null then
            concurrency := null; held := 0; holders := null; opens_at := nullif(n.opens_at, 'infinity'); never := s.cost > n.burst;
            return next;
        end if;
    end loop;
end $$;
