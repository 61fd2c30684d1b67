-- take_keys: the idempotency keys of one enqueue call. One job per (task, key) within its window.
--
-- Keys that are free (or whose window is over) are taken for this batch; callers with the same key wait for each
-- other on the unique index, in sorted order, so that two calls with several keys cannot deadlock.
-- Returns places whose key belongs to another job, or one conflict (same key, other arguments), and then no key was
-- taken, so that the caller's transaction can go on.
create or replace function headrace.take_keys(
    p_batch uuid, p_tasks text[], k_ord int4[], k_key text[], k_digest bytea[], k_ttl interval[], p_now timestamptz,
    out existing_ord int4[], out existing_id uuid[], out conflict_ord int4, out conflict_id uuid
) language plpgsql as $$
begin
    insert into headrace.idem as i (task, key, batch, ord, digest, until)
    select a.task, a.key, p_batch, a.ord, a.digest, p_now + a.ttl
    from (
        -- The same key twice in one call: the first place takes it.
        select distinct on (t.task, u.key) t.task, u.key, u.ord, u.digest, u.ttl
        from unnest(k_ord, k_key, k_digest, k_ttl) u(ord, key, digest, ttl)
        cross join lateral (select p_tasks[least(u.ord + 1, cardinality(p_tasks))] as task) t
        order by t.task, u.key, u.ord
    ) a
    order by a.task, a.key
    on conflict (task, key) do update
        set batch = excluded.batch, ord = excluded.ord, digest = excluded.digest, until = excluded.until
        where i.until <= p_now;

    with asked as materialized (
        select u.ord, u.digest, i.digest as known, headrace.job_id(i.batch, i.ord) as id
        from unnest(k_ord, k_key, k_digest) u(ord, key, digest)
        join headrace.idem i on i.task = p_tasks[least(u.ord + 1, cardinality(p_tasks))] and i.key = u.key
        where (i.batch, i.ord) <> (p_batch, u.ord)
    )
    select (select array_agg(a.ord order by a.ord) from asked a), (select array_agg(a.id order by a.ord) from asked a),
        c.ord, c.id
    into existing_ord, existing_id, conflict_ord, conflict_id
    from (select) one left join (select a.ord, a.id from asked a where a.digest <> a.known order by a.ord limit 1) c on true;

    if conflict_ord is not null then
        delete from headrace.idem i
        using unnest(k_ord, k_key) u(ord, key)
        where i.task = p_tasks[least(u.ord + 1, cardinality(p_tasks))] and i.key = u.key and i.batch = p_batch;
    end if;
end $$;
