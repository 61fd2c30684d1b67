-- take_locks: the unique locks of one enqueue call.
--
--   u_*      by place: the lock's name, the states in which a job holds it (joined by comma), for how long after it was
--            enqueued at most, and whether a waiting holder is replaced
--   p_skip   places with an existing job by their key
--
-- A lock belongs to the job that took it last. Whether that job still holds it is read from that job. Callers with the
-- same lock wait for each other: on the unique index for a new one, then on its row. Neither two calls with several
-- locks nor a call and a cancel can deadlock: all locks are taken first, by name, and then the ranges of the replaced
-- jobs, by id. In one call the first place of a name takes the lock, or the last one if it replaces. Returns the places
-- that are not stored, with the existing job of each.
create or replace function headrace.take_locks(
    p_batch uuid, p_tasks text[], u_ord int4[], u_name text[], u_states text[], u_within interval[], u_replace bool[],
    p_skip int4[], p_now timestamptz, out existing_ord int4[], out existing_id uuid[]
) language plpgsql as $$
declare
    j        headrace.job;
    w        record;
    n        record;
    i        int4;
    v_task   text[]; v_name text[]; v_chosen int4[]; v_places text[];
    v_batch  uuid[]; v_ord int4[];                    -- the job that took each lock last
    v_keeps  bool;
begin
    select array_agg(c.task), array_agg(c.name), array_agg(c.chosen), array_agg(c.places)
    into v_task, v_name, v_chosen, v_places
    from (
        select t.task collate "C" as task, u.name collate "C" as name,
            case when (array_agg(u.replace order by u.ord desc))[1] then max(u.ord) else min(u.ord) end as chosen,
            string_agg(u.ord::text, ',' order by u.ord) as places
        from unnest(u_ord, u_name, u_replace) u(ord, name, replace)
        cross join lateral (select p_tasks[least(u.ord + 1, cardinality(p_tasks))] as task) t
        where p_skip is null or u.ord <> all (p_skip)
        group by 1, 2 order by 1, 2
    ) c;
    if v_task is null then return; end if;
    loop
        insert into headrace.unique_lock (task, name, batch, ord)
        select c.task, c.name, p_batch, c.ord from unnest(v_task, v_name, v_chosen) with ordinality c(task, name, ord, o) order by c.o
        on conflict (task, name) do nothing;
        select array_agg(l.batch order by l.o), array_agg(l.ord order by l.o) into v_batch, v_ord
        from (
            select k.batch, k.ord, c.o from unnest(v_task, v_name) with ordinality c(task, name, o)
            join headrace.unique_lock k on k.task = c.task and k.name = c.name order by c.o for update of k
        ) l;
        -- `prune` may have dropped one between the two statements.
        exit when cardinality(v_batch) = cardinality(v_task);
    end loop;

    for i in select l.o from unnest(v_batch, v_ord) with ordinality l(batch, ord, o) order by l.batch, l.ord loop
        v_keeps := false;
        if v_batch[i] <> p_batch then
            select u.states, u.within, u.replace into w
            from unnest(u_ord, u_states, u_within, u_replace) u(ord, states, within, replace) where u.ord = v_chosen[i];
            select * into n from headrace.state_now(v_batch[i], v_ord[i]);
            v_keeps := coalesce(n.state = any (string_to_array(w.states, ',')) and (w.within is null or p_now < n.enqueued_at + w.within), false);
            if v_keeps and w.replace then
                v_keeps := false;
                if n.state in ('ready', 'scheduled', 'blocked') then
                    select * into j from headrace.job b where b.batch = v_batch[i] and b.ord = v_ord[i];
                    -- A job that was claimed meanwhile goes on, like any running job.
                    insert into headrace.ending (batch, finished_at, ord, state, attempt, failures, crashes, note)
                    select j.batch, p_now, j.ord, 3, t.attempt, nullif(t.failures, 0), nullif(t.crashes, 0), 'replaced'
                    from headrace.take_waiting(j) t;
                    if found then
                        perform headrace.count_end(j.batch, j.ord, 3::int2);
                    end if;
                end if;
            end if;
            if not v_keeps then
                update headrace.unique_lock l set batch = p_batch, ord = v_chosen[i] where l.task = v_task[i] and l.name = v_name[i];
                v_batch[i] := p_batch; v_ord[i] := v_chosen[i];
            end if;
        end if;
        select existing_ord || array_agg(p.place::int4), existing_id || array_agg(headrace.job_id(v_batch[i], v_ord[i]))
        into existing_ord, existing_id
        from unnest(string_to_array(v_places[i], ',')) p(place) where v_keeps or p.place::int4 <> v_chosen[i];
    end loop;
end $$;
