-- heartbeat: renew leases. Returns which exist and which jobs to stop.
--
-- A lease that a user's transaction holds (completion inside it) is skipped, so that the call does not wait. It exists,
-- so it is not lost. An expired lease is not lost either: only `reap` takes leases away.
-- Returns one row: the tokens that exist, and pairs (token, position) to stop.
create or replace function headrace.heartbeat(p_tokens uuid[], p_ttl interval, p_now timestamptz default null,
    out alive uuid[], out stop_token uuid[], out stop_position int4[]
) language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_until timestamptz := coalesce(p_now, clock_timestamp()) + p_ttl;
begin
    -- A renewal lost in a crash only makes a lease end earlier.
    perform set_config('synchronous_commit', 'off', true);
    update headrace.lease l set until = v_until
    where l.token = any (array(
        select k.token from headrace.lease k where k.token = any (p_tokens) order by k.token for update skip locked));
    select array_agg(l.token) into alive from headrace.lease l where l.token = any (p_tokens);
    if exists (select from headrace.stop) then
        select array_agg(s.token), array_agg(s.position) into stop_token, stop_position
        from (
            select l.token, (r.base + s.ord - r.lo)::int4 as position, l.gone
            from headrace.lease l
            cross join lateral (
                select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
                from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality u(batch, lo, hi, o)
            ) r
            join headrace.stop s on s.batch = r.batch and s.ord between r.lo and r.hi
            where l.token = any (p_tokens)
        ) s
        where s.gone is null or get_bit(s.gone, s.position) = 0;
    end if;
end $$;
