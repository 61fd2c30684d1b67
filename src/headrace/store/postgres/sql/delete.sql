-- delete: forget jobs that are not running. Answers those deleted. Keys live out their window all the same.
create or replace function headrace.delete(p_ids uuid[]) returns table (id uuid) language plpgsql as $$
#variable_conflict use_column
declare
    v_id    uuid;
    j       headrace.job;
    v_state int2;
begin
    for v_id in select distinct u.id from unnest(p_ids) u(id) order by 1 loop
        select * into j from headrace.job where batch = headrace.id_batch(v_id) and ord = headrace.id_ord(v_id);
        continue when not found;
        delete from headrace.ending e where e.batch = j.batch and e.ord = j.ord returning e.state into v_state;
        if found then
            if v_state = 2 then
                insert into headrace.tally (dead, queue) values (-1, j.queue);
            end if;
        else
            perform from headrace.take_waiting(j);
            continue when not found;
        end if;
        delete from headrace.job where batch = j.batch and ord = j.ord;
        delete from headrace.failure where batch = j.batch and ord = j.ord;
        delete from headrace.stop where batch = j.batch and ord = j.ord;
        delete from headrace.report where batch = j.batch and ord = j.ord;
        id := v_id;
        return next;
    end loop;
end $$;
