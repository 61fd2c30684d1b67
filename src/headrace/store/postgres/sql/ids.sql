-- Ids: a job's id is its batch with `ord` in the low 16 bits, and a batch is a UUIDv7 whose low 16 bits are zero.

-- The id of the job at place p_ord of a batch.
create or replace function headrace.job_id(p_batch uuid, p_ord int4) returns uuid
language sql immutable parallel safe strict as $$
    select (left(p_batch::text, 32) || lpad(to_hex(p_ord), 4, '0'))::uuid
$$;

-- The batch of a job id.
create or replace function headrace.id_batch(p_id uuid) returns uuid
language sql immutable parallel safe strict as $$
    select (left(p_id::text, 32) || '0000')::uuid
$$;

-- The place of a job id in its batch.
create or replace function headrace.id_ord(p_id uuid) returns int4
language sql immutable parallel safe strict as $$
    select ('x0000' || right(p_id::text, 4))::varbit::bit(32)::int4
$$;

-- The least batch id of a moment: where a day's partition begins.
create or replace function headrace.batch_floor(p_at timestamptz) returns uuid
language sql immutable parallel safe strict as $$
    select rpad(lpad(to_hex(floor(extract(epoch from p_at) * 1000)::int8), 12, '0'), 32, '0')::uuid
$$;

-- A fresh batch id, for callers without headrace's client.
create or replace function headrace.new_batch() returns uuid
language sql volatile as $$
    select (lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::int8), 12, '0')
        || '7' || substr(r.hex, 14, 3) || substr(r.hex, 17, 12) || '0000')::uuid
    from (select replace(gen_random_uuid()::text, '-', '') as hex) r
$$;
