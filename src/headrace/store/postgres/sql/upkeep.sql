-- upkeep: whether this worker is one of the p_places of its group that do the upkeep; if so, it stays so for p_ttl.
-- p_workers names the group; null: the worker does none.
--
-- Two workers that come at the same moment may both get the last place: the upkeep may be done by any number of workers.
create or replace function headrace.upkeep(p_workers text, p_worker uuid, p_ttl interval, p_places int4,
    p_now timestamptz default null
) returns bool language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    if p_workers is null then
        return false;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    update headrace.upkeep u set until = v_now + p_ttl
    where u.workers = p_workers and u.worker = p_worker and u.until > v_now;
    if found then
        return true;
    end if;
    if (select count(*) from headrace.upkeep u where u.workers = p_workers and u.worker <> p_worker and u.until > v_now)
        >= p_places
    then
        return false;
    end if;
    -- Places that another heartbeat is freeing now need no action here.
    delete from headrace.upkeep u where u.ctid = any (array(
        select k.ctid from headrace.upkeep k where k.until <= v_now limit 100 for update skip locked));
    insert into headrace.upkeep (workers, worker, until) values (p_workers, p_worker, v_now + p_ttl)
    on conflict (workers, worker) do update set until = excluded.until;
    return true;
end $$;
