-- abandon: expire the leases of a dead worker now, and record the cause. Returns how many.
create or replace function headrace.abandon(p_worker uuid, p_cause text, p_now timestamptz default null) returns int4
language plpgsql as $$
declare
    v_count int4;
begin
    update headrace.lease l set until = coalesce(p_now, clock_timestamp()), cause = p_cause
    where l.token = any (array(select k.token from headrace.lease k where k.worker = p_worker for update skip locked));
    get diagnostics v_count = row_count;
    delete from headrace.upkeep u where u.worker = p_worker;
    return v_count;
end $$;
