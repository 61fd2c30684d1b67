-- The server compresses payloads by lz4 if it was built with it, because that takes a quarter of the time of pglz.
-- Values that are stored already keep their compression. Partitions of later days take it from the table.
do $$
declare
    v_table regclass;
begin
    if exists (select from pg_settings s where s.name = 'default_toast_compression' and 'lz4' = any (s.enumvals)) then
        for v_table in select t.relid from pg_partition_tree('headrace.job') t loop
            execute format('alter table %s alter payload set compression lz4', v_table);
        end loop;
    end if;
end $$;
