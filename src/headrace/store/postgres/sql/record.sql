-- record: write a record if it still has the version that the caller saw (null: if there is none), or with a null value
-- delete it. Returns the new version, 0 for a deleted one, null if another caller was first.
create or replace function headrace.record(p_kind text, p_name text, p_value bytea, p_expect int8) returns int8
language plpgsql as $$
declare
    v_version int8;
begin
    if p_expect is null and p_value is null then
        select case when count(*) = 0 then 0 end into v_version from headrace.records where kind = p_kind and name = p_name;
    elsif p_expect is null then
        insert into headrace.records (kind, name, version, value)
        values (p_kind, p_name, nextval('headrace.record_version'), p_value)
        on conflict do nothing returning version into v_version;
    elsif p_value is null then
        delete from headrace.records where kind = p_kind and name = p_name and version = p_expect returning 0 into v_version;
    else
        update headrace.records set version = nextval('headrace.record_version'), value = p_value
        where kind = p_kind and name = p_name and version = p_expect returning version into v_version;
    end if;
    return v_version;
end $$;
