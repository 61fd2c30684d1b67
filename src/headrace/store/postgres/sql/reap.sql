-- reap: take over expired leases, the longest expired first, under fresh tokens held by p_worker.
--
-- From here on the old tokens are void. It is no claim: attempts, positions and claim times stay as they are.
-- Leases being settled at this moment are left alone. `headrace.held(token)` tells what each new token holds.
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
    -- The units that a lease holds go with it: nobody knows whether its jobs still run.
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
