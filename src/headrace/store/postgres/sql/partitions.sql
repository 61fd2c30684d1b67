-- make_partition: the three partitions of one day. False: rows of that day already lie in the default partition, where
-- they stay (they are pruned row by row), the tables are too busy to get at within p_wait, or somebody else is at it.
create or replace function headrace.make_partition(p_day date, p_wait text default '200ms') returns bool language plpgsql as $$
declare
    v_name text;
begin
    if to_regclass(format('headrace.%I', 'job_' || to_char(p_day, 'YYYYMMDD'))) is not null then return false; end if;
    perform set_config('lock_timeout', p_wait, true);
    foreach v_name in array array['job', 'ending', 'failure'] loop
        execute format('create table headrace.%I partition of headrace.%I for values from (%L) to (%L)',
            v_name || '_' || to_char(p_day, 'YYYYMMDD'), v_name,
            headrace.batch_floor(p_day::timestamp at time zone 'UTC'),
            headrace.batch_floor((p_day + 1)::timestamp at time zone 'UTC'));
    end loop;
    perform set_config('lock_timeout', '0', true);
    return true;
exception when check_violation or lock_not_available or duplicate_table or unique_violation then
    return false;
end $$;

-- partition_days: the days that have partitions of their own.
create or replace function headrace.partition_days() returns setof date language sql stable as $$
    select to_date(right(c.relname, 8), 'YYYYMMDD')
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'headrace.job'::regclass and c.relname ~ '^job_[0-9]{8}$'
    order by 1
$$;
