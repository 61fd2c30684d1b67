-- is_undone: whether a dead job has registered undo jobs, and they were let go.
--
-- The rows of jobs that still wait for the failure are locked, so that they are let go before this look or not at all.
create or replace function headrace.is_undone(p_batch uuid, p_ord int4) returns bool language plpgsql as $$
begin
    if not exists (select from headrace.step s where s.batch = p_batch and s.ord = p_ord and s.name = 'headrace.undo') then
        return false;
    end if;
    perform from headrace.blocked b where b.gate = headrace.job_id(p_batch, p_ord) and b.needs = 3 for update;
    return not found;
end $$;

-- retry: make finished or scheduled jobs ready now; failures and crashes from 0, attempts go on counting.
--
-- p_afresh false: scheduled ones only, as if they were due. Returns the moved ids and their queues. Running, ready, blocked and
-- unknown jobs are unchanged.
create or replace function headrace.retry(p_ids uuid[], p_afresh bool default true) returns table (id uuid, queue text) language plpgsql as $$
#variable_conflict use_column
declare
    v_id      uuid;
    j         headrace.job;
    v_state   int2;
    v_attempt int4;
    v_failures int4;
    v_crashes int4;
    v_suspect bool;
    v_note    text;
begin
    for v_id in select distinct u.id from unnest(p_ids) u(id) order by 1 loop
        select * into j from headrace.job where batch = headrace.id_batch(v_id) and ord = headrace.id_ord(v_id);
        continue when not found;
        v_state := null; v_failures := 0; v_crashes := 0; v_suspect := false; v_note := null;
        if p_afresh then
            select e.state, e.attempt into v_state, v_attempt from headrace.take_ended(j.batch, j.ord) e;
        end if;
        if v_state is not null then
            -- A dead job resumes behind its finished steps, unless its undo jobs were let go. The others start afresh.
            if v_state <> 2 or headrace.is_undone(j.batch, j.ord) then
                delete from headrace.step s where s.batch = j.batch and s.ord = j.ord;
            end if;
            perform headrace.count_again(j.batch, j.ord, v_state);
            insert into headrace.tally (ready, dead, queue) values (1, case when v_state = 2 then -1 else 0 end, j.queue);
        else
            select w.attempt, w.failures, w.crashes, w.suspect, w.note into v_attempt, v_failures, v_crashes, v_suspect, v_note
            from headrace.take_waiting(j, p_ready => false, p_blocked => false) w;
            continue when not found;
            if p_afresh then
                v_failures := 0; v_crashes := 0; v_suspect := false; v_note := null;
            end if;
            insert into headrace.tally (ready, queue) values (1, j.queue);
        end if;
        delete from headrace.stop s where s.batch = j.batch and s.ord = j.ord;
        insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
        values (j.seq, coalesce(j.lane, 0), j.batch, j.ord, j.ord, j.priority, v_attempt, v_failures, v_crashes, v_suspect,
            j.queue, coalesce(j.tenant, ''), v_note, j.limits);
        id := v_id; queue := j.queue;
        return next;
    end loop;
end $$;
