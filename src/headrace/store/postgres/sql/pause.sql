-- pause: no claim of this queue, or of this tenant, begins after this returns; and those under way are over, for `claim` holds
-- the same lock in share mode and reads the table in its next statement. Of tasks only the word is kept.
--
-- Of two pauses the first counts, by whom and since when; the last one says until when. One that is over is none.
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
