-- suspend: which of these settlements of `settle` go on waiting, by their index. The others are ready, because a gate has opened or
-- their time has come.
--
--   p_fresh            by index: whether the position was not settled before
--   p_run_at, p_delay  by index: ready then at the latest
--   w_*                what each index waits for
--   g_*                gates to make, each for an index
--
-- The rows of the gates are locked in the order of ids, and looked at in the next statement. `follow` waits for these locks, so
-- it finds the jobs that wait, or they find what it has added up.
create or replace function headrace.suspend(
    p_fresh bool[], p_run_at timestamptz[], p_delay interval[], w_index int4[], w_gate uuid[], w_needs int2[],
    g_index int4[], g_id uuid[], g_queue text[], g_sealed bool[], g_signalled bool[], g_label text[], g_tenant text[], p_now timestamptz
) returns int4[] language plpgsql as $$
begin
    insert into headrace.gate (id, made_at, changed_at, size, sealed, signalled, queue, tenant, label)
    select n.id, p_now, p_now, n.signalled::int4, n.sealed, n.signalled, n.queue, n.tenant, n.label
    from unnest(g_index, g_id, g_queue, g_sealed, g_signalled, g_label, g_tenant) n(index, id, queue, sealed, signalled, label, tenant)
    where p_fresh[n.index] order by n.id
    on conflict (id) do nothing;
    perform from headrace.gate g where g.id = any (w_gate) order by g.id for key share;
    return array(
        select w.index from unnest(w_index, w_gate, w_needs) w(index, gate, needs)
        left join lateral headrace.gate_now(w.gate) n on true
        where p_fresh[w.index] and coalesce(coalesce(p_run_at[w.index], p_now + p_delay[w.index]) > p_now, true)
        group by w.index
        -- A gate that does not exist is cancelled to those that wait for it.
        having bool_and(n.id is not null and headrace.verdict(w.needs, n.size, n.done, n.dead, n.cancelled, n.sealed) = 0));
end $$;
