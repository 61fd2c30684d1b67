-- take_waiting: take one waiting job, ready, scheduled or blocked. The row lock decides between several callers.
--
-- The range around it is split. Returns the job's counts so far and where it waited. No row if it does not wait.
-- `p_ready` false: not from ready; `p_scheduled` false: not from scheduled; `p_blocked` false: not from blocked. A suspended
-- job has several rows, of which the one with the lowest gate stands for the job.
--
-- A row that another transaction splits or moves while this one waits for its lock no longer matches, and the row that holds
-- the job now is not in the snapshot of the statement that waited. So the answer "it does not wait" needs one read of
-- all these tables with a fresh snapshot, and never follows from a lock that was not obtained. Each further round means that
-- another transaction has made progress.
create or replace function headrace.take_waiting(j headrace.job, p_ready bool default true, p_scheduled bool default true,
    p_blocked bool default true)
returns table (was_ready bool, attempt int4, failures int4, crashes int4, suspect bool, note text) language plpgsql as $$
#variable_conflict use_column
declare
    r record;
begin
    loop
        if p_ready then
            select x.ctid as tid, x.* into r from headrace.ready x
            where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
                and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord
            order by x.hi limit 1 for update;
            if found then
                if r.lo < j.ord then
                    insert into headrace.ready
                        (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
                    values (r.seq, r.lane, r.batch, r.lo, j.ord - 1, r.priority, r.attempt, r.failures, r.crashes, r.suspect, r.queue,
                        r.tenant, r.note, r.limits);
                end if;
                if j.ord < r.hi then
                    update headrace.ready x set lo = j.ord + 1 where x.ctid = r.tid;
                else
                    delete from headrace.ready x where x.ctid = r.tid;
                end if;
                insert into headrace.tally (ready, queue) values (-1, j.queue);
                return query select true, r.attempt, r.failures, r.crashes, r.suspect, r.note;
                return;
            end if;
        end if;
        if p_scheduled then
            select x.ctid as tid, x.* into r from headrace.scheduled x
            where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi limit 1 for update;
            if found then
                if r.lo < j.ord then
                    insert into headrace.scheduled
                        (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
                    values (r.run_at, r.seq, r.lane, r.batch, r.lo, j.ord - 1, r.priority, r.attempt, r.failures, r.crashes, r.suspect,
                        r.queue, r.tenant, r.note, r.limits);
                end if;
                if j.ord < r.hi then
                    update headrace.scheduled x set lo = j.ord + 1 where x.ctid = r.tid;
                else
                    delete from headrace.scheduled x where x.ctid = r.tid;
                end if;
                insert into headrace.tally (scheduled, queue) values (-1, j.queue);
                return query select false, r.attempt, r.failures, r.crashes, r.suspect, r.note;
                return;
            end if;
        end if;
        if p_blocked then
            select x.ctid as tid, x.* into r from headrace.blocked x
            where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi, x.gate limit 1 for update;
            if found then
                if r.lo < j.ord then
                    insert into headrace.blocked (gate, needs, due_at, delay, seq, lane, batch, lo, hi, priority, attempt, failures, crashes,
                        suspect, queue, tenant, note, limits)
                    values (r.gate, r.needs, r.due_at, r.delay, r.seq, r.lane, r.batch, r.lo, j.ord - 1, r.priority, r.attempt, r.failures,
                        r.crashes, r.suspect, r.queue, r.tenant, r.note, r.limits);
                end if;
                if j.ord < r.hi then
                    update headrace.blocked x set lo = j.ord + 1 where x.ctid = r.tid;
                else
                    delete from headrace.blocked x where x.batch = j.batch and x.hi = r.hi;
                end if;
                insert into headrace.tally (blocked, queue) values (-1, j.queue);
                return query select false, r.attempt, r.failures, r.crashes, r.suspect, r.note;
                return;
            end if;
        end if;
        exit when not exists (
            select from headrace.ready x
            where p_ready and x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
                and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord
            union all
            select from headrace.scheduled x where p_scheduled and x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord
            union all
            select from headrace.blocked x where p_blocked and x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord);
    end loop;
end $$;
