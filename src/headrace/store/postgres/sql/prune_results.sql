-- prune_results: drop the bytes of up to p_limit expired results. Returns how many.
create or replace function headrace.prune_results(p_limit int4, p_now timestamptz default null) returns int4 language plpgsql as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_count int4;
begin
    update headrace.ending e set result = '' from (
        -- The first two conditions are those of the index.
        select x.batch, x.ord from headrace.ending x
        where x.result_until is not null and octet_length(x.result) > 0 and x.result_until <= v_now
        order by x.result_until limit p_limit for update skip locked) o
    where e.batch = o.batch and e.ord = o.ord;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
