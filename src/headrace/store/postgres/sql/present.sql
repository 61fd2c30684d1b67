-- present: record a worker's presence.
create or replace function headrace.present(
    p_id uuid, p_name text, p_queues text[], p_slots int4, p_running int4, p_version text, p_started_at timestamptz,
    p_tasks text[], p_now timestamptz default null, p_hindered text[] default '{}',
    p_memory int8 default null
) returns void language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace.worker (id, name, queues, slots, running, version, started_at, tasks, seen_at, hindered, memory)
    values (p_id, p_name, p_queues, p_slots, p_running, p_version, p_started_at, p_tasks, coalesce(p_now, clock_timestamp()),
        p_hindered, p_memory)
    on conflict (id) do update set name = excluded.name, queues = excluded.queues, slots = excluded.slots,
        running = excluded.running, version = excluded.version, started_at = excluded.started_at, tasks = excluded.tasks,
        seen_at = excluded.seen_at, hindered = excluded.hindered, memory = excluded.memory;
    -- Only for a new worker, because a conflict would use up a number each time.
    insert into headrace.runner (id, name, at)
    select p_id, p_name, coalesce(p_now, clock_timestamp())
    where not exists (select from headrace.runner r where r.id = p_id and r.name = p_name)
    on conflict (id) do update set name = excluded.name;
end $$;

-- new_runner: the number of a worker that settles before its presence is recorded. Until then it has no name.
create or replace function headrace.new_runner(p_id uuid) returns int4 language plpgsql as $$
begin
    insert into headrace.runner (id, name, at) values (p_id, '', clock_timestamp()) on conflict (id) do nothing;
    return (select r.no from headrace.runner r where r.id = p_id);
end $$;
