-- fold: sum the journal up into `depth`. Two calls at once share the rows.
create or replace function headrace.fold() returns void language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    with taken as (
        delete from headrace.tally t
        where t.ctid = any (array(select k.ctid from headrace.tally k limit 100000 for update skip locked))
        returning t.*
    )
    insert into headrace.depth as d (queue, ready, scheduled, running, blocked, dead, done, failed, enqueued)
    select t.queue, sum(t.ready), sum(t.scheduled), sum(t.running), sum(t.blocked), sum(t.dead), sum(t.done), sum(t.failed), sum(t.enqueued)
    from taken t group by t.queue order by t.queue
    on conflict (queue) do update set ready = d.ready + excluded.ready, scheduled = d.scheduled + excluded.scheduled,
        running = d.running + excluded.running, blocked = d.blocked + excluded.blocked, dead = d.dead + excluded.dead, done = d.done + excluded.done,
        failed = d.failed + excluded.failed, enqueued = d.enqueued + excluded.enqueued;
end $$;
