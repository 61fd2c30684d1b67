-- enqueue_members: as `enqueue_linked`, for a call whose jobs p_lo..p_hi are members of one stored gate, without keys, unique locks and
-- waits. Most jobs of a group come in such calls.
--
-- A gate that is neither sealed nor waits for a signal cannot be over, so nothing is counted. This call holds the key of its row, so a fold
-- that comes now sees these members.
--
-- Returns the gate if it takes no members, and then nothing was stored. Otherwise, whether to `follow` it. Nothing waits for that: it
-- keeps the tolls few.
create or replace function headrace.enqueue_members(
    p_batch uuid, p_tasks text[], p_payloads bytea[], p_options bytea[],
    s_hi int4[], s_queue text[], s_priority int2[], s_tenant text[], s_lane int8[], s_limits text[],
    s_run_at timestamptz[], s_delay interval[], p_now timestamptz, p_gate uuid, p_lo int4, p_hi int4,
    out over uuid, out follow bool
) language plpgsql
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
as $$
declare
    v_closed bool;
begin
    -- A repeated call has the members already.
    if exists (select from headrace.job j where j.batch = p_batch) then return; end if;
    select g.sealed or g.signalled into v_closed from headrace.gate g where g.id = p_gate for key share;
    if v_closed is distinct from false and headrace.takes_none(array[p_gate], null) is not null then
        over := p_gate;
        return;
    end if;
    perform headrace.enqueue_batch(p_batch, p_tasks, p_payloads, p_options, s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits, s_run_at,
        s_delay, null, null, null, null, null, null, null, null, null, p_now);
    insert into headrace.edge (batch, lo, hi, gate) values (p_batch, p_lo, p_hi, p_gate) on conflict (gate, batch, lo, hi) do nothing;
    if found then
        insert into headrace.toll (gate, size) values (p_gate, p_hi - p_lo + 1);
    end if;
    follow := random() < 0.02;
end $$;
