-- Chains: jobs of one batch and lane, each of which waits for the job before it to be done. A chain lo..hi is one row of `blocked`. When the
-- job at lo - 1 is done, lo becomes ready, and the row gets shorter. Its column `gate` names no gate and no job.

-- chain_of: what stands in `gate` of the chains of a batch: its last place, so that `is_linked` finds them. No job is there, because a
-- batch with so many jobs has no chains.
create or replace function headrace.chain_of(p_batch uuid) returns uuid language sql immutable parallel safe strict as $$
    select (left(p_batch::text, 32) || 'ffff')::uuid
$$;

-- chains_at: the batch whose chains have this id in `gate`; null: none. A look for what waits for a gate or a job leaves these out.
create or replace function headrace.chains_at(p_id uuid) returns uuid language sql immutable parallel safe strict as $$
    select case when right(p_id::text, 4) = 'ffff' then (left(p_id::text, 32) || '0000')::uuid end
$$;

-- waits_for: what a blocked job at place p_ord waits for. p_gate: the column of its row.
create or replace function headrace.waits_for(p_gate uuid, p_batch uuid, p_ord int4) returns uuid
language plpgsql immutable parallel safe strict as $$
begin
    return case when p_gate = headrace.chain_of(p_batch) then headrace.job_id(p_batch, p_ord - 1) else p_gate end;
end $$;

-- chain_after: the chain that goes on when this job is done, if there is one. The chains of a batch do not overlap, so the one in which
-- the next job is ends first.
create or replace function headrace.chain_after(p_batch uuid, p_ord int4) returns table (tid tid, lo int4) language sql stable rows 1 as $$
    select c.tid, c.lo from (
        select b.ctid as tid, b.lo from headrace.blocked b
        where b.gate = headrace.chain_of(p_batch) and b.batch = p_batch and b.hi > p_ord order by b.hi limit 1
    ) c where c.lo = p_ord + 1
$$;

-- lock_chain: lock the chain that goes on when this job is done. A row that is locked is left out.
create or replace function headrace.lock_chain(p_id uuid) returns tid[] language plpgsql as $$
declare
    v_batch uuid  := headrace.id_batch(p_id);
    v_ord   int4  := headrace.id_ord(p_id);
begin
    if headrace.is_gate(p_id) then return null; end if;
    return nullif(array(
        select b.ctid from headrace.blocked b
        where b.gate = headrace.chain_of(v_batch) and b.batch = v_batch and b.hi > v_ord and b.lo = v_ord + 1 for update skip locked
    ), '{}');
end $$;
