-- pause: no claim of this queue begins after this returns; and those under way are over, for `claim` holds the same
-- lock in share mode and reads the table in its next statement.
create or replace function headrace.pause(p_queue text, p_by text, p_now timestamptz default null) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1214538830, 1);
    insert into headrace.paused_queue (queue, by, since) values (p_queue, p_by, coalesce(p_now, clock_timestamp()))
    on conflict (queue) do nothing;
end $$;
