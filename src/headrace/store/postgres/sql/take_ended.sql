-- take_ended: take the ending of one job away. The delete of its row decides between several callers.
--
-- What is left of the range around the job is written again, before and behind it. Returns the state and the attempt in which
-- the job ended; nulls if it has not ended. `p_states`: only if it ended in one of these; null: in any. `p_by`: only if it ended
-- at or before this time; null: whenever.
--
-- A row that another transaction splits while this one waits for its lock no longer matches, and the row that holds the job
-- now is not in the snapshot of the statement that waited. So "it has not ended" is answered by a look with a fresh snapshot.
create or replace function headrace.take_ended(
    p_batch uuid, p_ord int4, p_states int2[] default null, p_by timestamptz default null, out state int2, out attempt int4
) language plpgsql as $$
begin
    loop
        with taken as (
            delete from headrace.ending e
            where e.batch = p_batch and e.ord >= p_ord >> 5 << 5 and e.ord <= p_ord and coalesce(e.hi, e.ord) >= p_ord
                and (p_states is null or e.state = any (p_states)) and (p_by is null or e.finished_at <= p_by)
            returning e.*
        ), kept as (
            insert into headrace.ending
                (batch, finished_at, ord, hi, attempt, state, failures, crashes, result, result_until, note, worker, claimed_at)
            select t.batch, t.finished_at, k.lo, nullif(k.hi, k.lo), t.attempt, t.state, t.failures, t.crashes, t.result,
                t.result_until, t.note, t.worker, t.claimed_at
            from taken t cross join lateral (values (t.ord, p_ord - 1), (p_ord + 1, t.hi)) k(lo, hi)
            where k.lo <= k.hi
        )
        select t.state, t.attempt into state, attempt from taken t;
        exit when found or not exists (
            select from headrace.ending_of(p_batch, p_ord) e
            where (p_states is null or e.state = any (p_states)) and (p_by is null or e.finished_at <= p_by));
    end loop;
end $$;
