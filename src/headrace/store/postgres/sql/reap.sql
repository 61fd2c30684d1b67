-- reap: take over expired leases, the longest expired first, under fresh tokens held by p_worker.
--
-- The old tokens are invalid from here on. This is not a claim: attempts, positions and claim times stay unchanged.
-- Leases that are being settled are skipped. `headrace.held(token)` returns the jobs of each new token.
create or replace function headrace.reap(p_worker uuid, p_ttl interval, p_limit int4, p_now timestamptz default null)
returns table (token uuid, suspect bool, worker uuid, cause text) language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    -- The units of a lease stay with it, because its jobs may still run.
    with expired as materialized (
        select l.token, l.worker, l.cause, l.until, gen_random_uuid() as fresh from headrace.lease l
        where l.until <= v_now order by l.until limit p_limit for update skip locked
    ), taken as (
        update headrace.lease l set token = e.fresh, worker = p_worker, until = v_now + p_ttl, cause = null
        from expired e where l.token = e.token returning e.fresh, e.token, l.suspect, l.limited, e.worker, e.cause, e.until
    ), held as (
        update headrace.hold h set token = t.fresh from taken t where t.limited and h.token = t.token
    )
    select t.fresh, t.suspect, t.worker, coalesce(t.cause, 'lease expired') from taken t order by t.until;
end $$;
