-- cancel: waiting → cancelled at once; running → asked, its worker learns it with the next heartbeat; finished →
-- untouched.
--
-- Returns one word per id. A job can move between two reads (promoted, released, claimed): then it is read again.
create or replace function headrace.cancel(p_ids uuid[], p_reason text, p_now timestamptz default null)
returns table (id uuid, answer text) language plpgsql as $$
#variable_conflict use_column
declare
    v_id    uuid;
    j       headrace.job;
    w       record;
    v_try   int4;
    v_lease uuid;
begin
    -- In one order, so that two callers cannot deadlock.
    for v_id in select distinct u.id from unnest(p_ids) u(id) order by 1 loop
        id := v_id;
        select * into j from headrace.job where batch = headrace.id_batch(v_id) and ord = headrace.id_ord(v_id);
        if not found then
            answer := 'unknown'; return next; continue;
        end if;
        answer := null;
        for v_try in 1 .. 50 loop
            select * into w from headrace.take_waiting(j);
            if found then
                insert into headrace.ending (batch, finished_at, ord, state, attempt, failures, crashes, note)
                values (j.batch, coalesce(p_now, clock_timestamp()), j.ord, 3, w.attempt, nullif(w.failures, 0), nullif(w.crashes, 0),
                    p_reason);
                perform headrace.count_end(j.batch, j.ord, 3::int2);
                answer := 'cancelled';
            elsif exists (select from headrace.ending_of(j.batch, j.ord)) then
                answer := 'finished';
            else
                -- Settling waits for this lock, so a job that is asked to stop cannot go back without noticing it.
                select l.token into v_lease from headrace.lease l, unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality r(batch, lo, hi, o)
                where l.r_batch @> array[j.batch] and r.batch = j.batch and j.ord between r.lo and r.hi
                    and (l.gone is null or get_bit(l.gone, (
                        select sum(x.hi - x.lo + 1) from unnest(l.r_lo, l.r_hi) with ordinality x(lo, hi, o) where x.o <= r.o
                        )::int4 - (r.hi - j.ord) - 1) = 0)
                limit 1;
                if found and (v_try > 40 or exists (
                    select from headrace.lease l where l.token = v_lease for update skip locked)) then
                    -- A settlement whose transaction cannot see the row below must fail. The changed lease makes it
                    -- fail.
                    update headrace.lease l set cause = l.cause where l.token = v_lease;
                    insert into headrace.stop as s (batch, ord, reason) values (j.batch, j.ord, p_reason)
                    on conflict (batch, ord) do update set reason = excluded.reason;
                    answer := 'asked';
                elsif v_try > 1 then
                    -- Another transaction holds its lease right now.
                    perform pg_sleep(0.005);
                end if;
            end if;
            exit when answer is not null;
        end loop;
        if answer is null then
            raise exception 'job % keeps moving', v_id using errcode = '40001';
        end if;
        return next;
    end loop;
end $$;
