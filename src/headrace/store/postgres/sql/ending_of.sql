-- ending_of: the row of `ending` that tells how a job ended; none if it has not ended. The row may be a range, and then `ord` is
-- its first job. There is no `order by … limit 1`, because the planner may sort the whole batch for it.
create or replace function headrace.ending_of(p_batch uuid, p_ord int4) returns setof headrace.ending language sql stable rows 1 as $$
    select e.* from headrace.ending e
    where e.batch = p_batch and e.ord >= p_ord >> 5 << 5 and e.ord <= p_ord and coalesce(e.hi, e.ord) >= p_ord
$$;
