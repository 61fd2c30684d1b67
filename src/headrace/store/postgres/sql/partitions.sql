-- make_partition: the three partitions of one day. False: there is one, rows of that day are already in the default
-- partition, where they stay (they are pruned row by row), the tables cannot be locked within p_wait, the caller does
-- not own them, or another caller does it.
create or replace function headrace.make_partition(p_day date, p_wait text default '50ms') returns bool language plpgsql as $$
declare
    v_tables constant text[] := array['job', 'ending', 'failure'];
    v_day    text := to_char(p_day, 'YYYYMMDD');
    v_lo     uuid := headrace.batch_floor(p_day::timestamp at time zone 'UTC');
    v_hi     uuid := headrace.batch_floor((p_day + 1)::timestamp at time zone 'UTC');
    v_name   text;
begin
    if to_regclass(format('headrace.%I', 'job_' || v_day)) is not null then return false; end if;
    if not pg_has_role((select c.relowner from pg_class c where c.oid = 'headrace.job'::regclass), 'usage') then return false; end if;
    -- Checked before anything is locked, so that a refusal does not delay other calls.
    if exists (select from headrace.job_default d where d.batch >= v_lo and d.batch < v_hi) then return false; end if;
    perform set_config('lock_timeout', p_wait, true);
    foreach v_name in array v_tables loop
        execute format('create table headrace.%I partition of headrace.%I for values from (%L) to (%L)',
            v_name || '_' || v_day, v_name, v_lo, v_hi);
        -- Other calls wait behind the first lock, so the next locks must not take long.
        perform set_config('lock_timeout', '15ms', true);
        execute format('alter table headrace.%I drop constraint if exists %I', v_name || '_default', 'not_' || v_day);
    end loop;
    perform set_config('lock_timeout', '0', true);
    return true;
exception when check_violation or lock_not_available or duplicate_table or unique_violation then
    return false;
end $$;

-- guard_default: where the default partitions are large, keep rows of a day out of them, so that making its partition
-- need not scan them under its lock. The guards must then be validated, which blocks no other call. False: no guard is
-- needed, or the tables are too busy.
create or replace function headrace.guard_default(p_day date) returns bool language plpgsql as $$
declare
    v_day  text := to_char(p_day, 'YYYYMMDD');
    v_lo   uuid := headrace.batch_floor(p_day::timestamp at time zone 'UTC');
    v_hi   uuid := headrace.batch_floor((p_day + 1)::timestamp at time zone 'UTC');
    v_name text;
begin
    if to_regclass(format('headrace.%I', 'job_' || v_day)) is not null then return false; end if;
    if not pg_has_role((select c.relowner from pg_class c where c.oid = 'headrace.job'::regclass), 'usage') then return false; end if;
    if 20000000 > (select sum(pg_relation_size(format('headrace.%I', n || '_default')::regclass))
        from unnest(array['job', 'ending', 'failure']) n) then return false; end if;
    if exists (select from headrace.job_default d where d.batch >= v_lo and d.batch < v_hi) then return false; end if;
    perform set_config('lock_timeout', '50ms', true);
    foreach v_name in array array['job', 'ending', 'failure'] loop
        if not exists (select from pg_constraint c where c.conname = 'not_' || v_day
            and c.conrelid = format('headrace.%I', v_name || '_default')::regclass) then
            execute format('alter table headrace.%I add constraint %I check (batch is null or batch < %L or batch >= %L) not valid',
                v_name || '_default', 'not_' || v_day, v_lo, v_hi);
        end if;
        perform set_config('lock_timeout', '15ms', true);
    end loop;
    perform set_config('lock_timeout', '0', true);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- partition_days: the days that have partitions of their own.
create or replace function headrace.partition_days() returns setof date language sql stable as $$
    select to_date(right(c.relname, 8), 'YYYYMMDD')
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'headrace.job'::regclass and c.relname ~ '^job_[0-9]{8}$'
    order by 1
$$;
