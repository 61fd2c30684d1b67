-- retry: make finished or scheduled jobs ready now; failures and crashes from 0, attempts go on counting.
--
-- Answers the ids moved and their queues; running, ready and unknown jobs are left alone.
create or replace function headrace.retry(p_ids uuid[]) returns table (id uuid, queue text) language plpgsql as $$
#variable_conflict use_column
declare
    v_id      uuid;
    j         headrace.job;
    v_state   int2;
    v_attempt int4;
begin
    for v_id in select distinct u.id from unnest(p_ids) u(id) order by 1 loop
        select * into j from headrace.job where batch = headrace.id_batch(v_id) and ord = headrace.id_ord(v_id);
        continue when not found;
        delete from headrace.ending e where e.batch = j.batch and e.ord = j.ord returning e.state, e.attempt into v_state, v_attempt;
        if found then
            insert into headrace.tally (ready, dead, queue) values (1, case when v_state = 2 then -1 else 0 end, j.queue);
        else
            select w.attempt into v_attempt from headrace.take_waiting(j, p_ready => false) w;
            continue when not found;
            insert into headrace.tally (ready, queue) values (1, j.queue);
        end if;
        delete from headrace.stop s where s.batch = j.batch and s.ord = j.ord;
        insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant)
        values (j.seq, coalesce(j.lane, 0), j.batch, j.ord, j.ord, j.priority, v_attempt, 0, 0, false, j.queue, coalesce(j.tenant, ''));
        id := v_id; queue := j.queue;
        return next;
    end loop;
end $$;
