-- retry: make finished or scheduled jobs ready now; failures and crashes from 0, attempts go on counting.
--
-- p_afresh false: scheduled ones only, as if they were due. Returns the moved ids and their queues. Running, ready and
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
            delete from headrace.ending e where e.batch = j.batch and e.ord = j.ord returning e.state, e.attempt into v_state, v_attempt;
        end if;
        if v_state is not null then
            -- A dead job resumes behind its finished steps. The others start afresh.
            if v_state <> 2 then
                delete from headrace.step s where s.batch = j.batch and s.ord = j.ord;
            end if;
            insert into headrace.tally (ready, dead, queue) values (1, case when v_state = 2 then -1 else 0 end, j.queue);
        else
            select w.attempt, w.failures, w.crashes, w.suspect, w.note into v_attempt, v_failures, v_crashes, v_suspect, v_note
            from headrace.take_waiting(j, p_ready => false) w;
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
