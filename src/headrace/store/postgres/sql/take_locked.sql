-- take_locked: take ranges that the caller has locked, each up to n_hi: those taken to their end (t_end) are deleted,
-- others are shortened from the front.
create or replace function headrace.take_locked(t_tid tid[], t_end int4[], n_hi int4[]) returns void language plpgsql as $$
begin
    if t_end = n_hi then
        delete from headrace.ready r where r.ctid = any (t_tid);
        return;
    end if;
    delete from headrace.ready r
    where r.ctid = any (array(select u.tid from unnest(t_tid, t_end, n_hi) u(tid, own, taken) where u.own = u.taken));
    update headrace.ready r set lo = u.taken + 1
    from unnest(t_tid, t_end, n_hi) u(tid, own, taken) where r.ctid = u.tid and u.own > u.taken;
end $$;

-- look_back: the history of ranges that the caller has locked, in their order, and how many of them may be taken.
--
-- A suspect that is met first is taken if p_alone, and then only it. If it is met later, the claim stops before it.
create or replace function headrace.look_back(
    t_tid tid[], p_alone bool,
    out attempts int4[], out failures int4[], out crashes int4[], out keep int4, out suspect bool, out stop bool
) language plpgsql as $$
#variable_conflict use_column
declare
    v_first int4;
begin
    select array_agg(r.attempt order by u.o), array_agg(r.failures order by u.o), array_agg(r.crashes order by u.o), min(u.o) filter (where r.suspect)
    into attempts, failures, crashes, v_first
    from unnest(t_tid) with ordinality u(tid, o) join headrace.ready r on r.ctid = u.tid;
    stop := v_first is not null;
    suspect := stop and v_first = 1 and p_alone;
    keep := case when not stop then cardinality(t_tid) when suspect then 1 else v_first - 1 end;
    attempts := attempts[:keep]; failures := failures[:keep]; crashes := crashes[:keep];
end $$;
