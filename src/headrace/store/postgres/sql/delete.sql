-- delete: forget jobs that are not running. Returns the deleted ones. Keys are kept for their whole window
-- nevertheless.
--
-- p_states: only those that are in one of these; null: in any. The delete of a row decides, so a job that becomes ready
-- at the same moment is either deleted in its old state, or stays.
create or replace function headrace.delete(p_ids uuid[], p_states text[] default null) returns table (id uuid) language plpgsql as $$
#variable_conflict use_column
declare
    v_id    uuid;
    j       headrace.job;
    v_state int2;
    v_ended int2[] := array_remove(array[
        case when 'done' = any (p_states) then 1 end, case when 'dead' = any (p_states) then 2 end,
        case when 'cancelled' = any (p_states) then 3 end]::int2[], null);
    v_ready bool := p_states is null or 'ready' = any (p_states);
    v_scheduled bool := p_states is null or 'scheduled' = any (p_states);
begin
    for v_id in select distinct u.id from unnest(p_ids) u(id) order by 1 loop
        select * into j from headrace.job where batch = headrace.id_batch(v_id) and ord = headrace.id_ord(v_id);
        continue when not found;
        delete from headrace.ending e
        where e.batch = j.batch and e.ord = j.ord and (p_states is null or e.state = any (v_ended)) returning e.state into v_state;
        if found then
            if v_state = 2 then
                insert into headrace.tally (dead, queue) values (-1, j.queue);
            end if;
        else
            perform from headrace.take_waiting(j, v_ready, v_scheduled);
            continue when not found;
        end if;
        delete from headrace.job where batch = j.batch and ord = j.ord;
        delete from headrace.failure where batch = j.batch and ord = j.ord;
        delete from headrace.stop where batch = j.batch and ord = j.ord;
        delete from headrace.report where batch = j.batch and ord = j.ord;
        delete from headrace.step where batch = j.batch and ord = j.ord;
        id := v_id;
        return next;
    end loop;
end $$;
