-- stand_ins: what jobs of this batch wait for, where a job of the batch that was not stored has been replaced by the one that stands
-- for it. That one may have met another one's lock in turn.
create or replace function headrace.stand_ins(p_batch uuid, p_gates uuid[], p_ord int4[], p_id uuid[]) returns uuid[]
language plpgsql immutable as $$
declare
    v_at int4;
begin
    for i in 1 .. case when cardinality(p_ord) > 0 then cardinality(p_gates) else 0 end loop
        for hop in 1 .. 2 loop
            exit when p_gates[i] is null or headrace.id_batch(p_gates[i]) <> p_batch;
            v_at := array_position(p_ord, headrace.id_ord(p_gates[i]));
            exit when v_at is null;
            p_gates[i] := p_id[v_at];
        end loop;
    end loop;
    return p_gates;
end $$;
