-- delete: forget jobs that are not running. Returns the deleted ones. Keys are kept for their whole window
-- nevertheless.
--
-- p_states: only those that are in one of these; null: in any. The delete of a row decides, so a job that becomes ready
-- at the same moment is either deleted in its old state, or stays.
-- p_ended_by: only those that ended at or before this time; null: whenever.
create or replace function headrace.delete(p_ids uuid[], p_states text[] default null, p_ended_by timestamptz default null)
returns table (id uuid) language plpgsql as $$
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
    v_blocked bool := p_states is null or 'blocked' = any (p_states);
begin
    for v_id in select distinct u.id from unnest(p_ids) u(id) order by 1 loop
        select * into j from headrace.job where batch = headrace.id_batch(v_id) and ord = headrace.id_ord(v_id);
        continue when not found;
        select e.state into v_state
        from headrace.take_ended(j.batch, j.ord, case when p_states is not null then v_ended end, p_ended_by) e;
        if v_state = 2 then
            insert into headrace.tally (dead, queue) values (-1, j.queue);
        elsif v_state is null then
            continue when p_ended_by is not null;
            perform from headrace.take_waiting(j, v_ready, v_scheduled, v_blocked);
            continue when not found;
        end if;
        if v_state is null or v_state = 2 then
            -- A member that did not end well before counts as cancelled.
            perform headrace.count_end(j.batch, j.ord, 3::int2, v_state);
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
