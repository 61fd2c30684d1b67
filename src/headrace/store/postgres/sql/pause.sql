-- pause: no claim of this queue, or of this tenant, begins after this returns; and earlier claims have ended, because
-- `claim` holds the same lock in share mode and reads the table in its next statement. Pauses of tasks are only
-- recorded.
--
-- Of two pauses, the first gives the author and the start, the last gives the end. A pause that is over does not count.
create or replace function headrace.pause(p_kind text, p_name text, p_by text, p_until timestamptz, p_now timestamptz default null)
returns void language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform pg_advisory_xact_lock(1214538830, 1);
    insert into headrace.pause as p (kind, name, by, since, until) values (p_kind, p_name, p_by, v_now, p_until)
    on conflict (kind, name) do update set until = excluded.until,
        by = case when p.until <= v_now then excluded.by else p.by end,
        since = case when p.until <= v_now then excluded.since else p.since end;
end $$;
