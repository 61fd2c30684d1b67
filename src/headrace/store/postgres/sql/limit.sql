-- write_limit: write a limit's rule if it still has the version that the caller saw (null: if there is none), or with p_drop
-- delete it. Returns the new version, 0 for a deleted one, null if another caller was first.
--
-- Claims that begin after this returns obey it, and earlier claims have ended: `claim` holds the same lock in share
-- mode.
create or replace function headrace.write_limit(
    p_name text, p_drop bool, p_concurrency int4, p_rate float8, p_burst float8, p_closed timestamptz, p_state bytea, p_expect int8
) returns int8 language plpgsql as $$
declare
    v_version int8;
begin
    perform pg_advisory_xact_lock(1214538830, 1);
    if p_expect is null and p_drop then
        select case when count(*) = 0 then 0 end into v_version from headrace.limit_rule where name = p_name;
    elsif p_expect is null then
        insert into headrace.limit_rule (name, version, concurrency, rate, burst, closed_until, state)
        values (p_name, nextval('headrace.record_version'), p_concurrency, p_rate, p_burst, p_closed, p_state)
        on conflict do nothing returning version into v_version;
    elsif p_drop then
        delete from headrace.limit_rule where name = p_name and version = p_expect returning 0 into v_version;
    else
        update headrace.limit_rule set version = nextval('headrace.record_version'), concurrency = p_concurrency, rate = p_rate,
            burst = p_burst, closed_until = p_closed, state = p_state
        where name = p_name and version = p_expect returning version into v_version;
    end if;
    return v_version;
end $$;
