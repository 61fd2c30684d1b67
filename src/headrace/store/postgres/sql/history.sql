-- add_history: add rollups. One that exists changes nothing, so that the call may be repeated.
create or replace function headrace.add_history(
    p_start int4[], p_id uuid[], p_span int2[], p_queue text[], p_task text[], p_ending text[], p_count int8[], p_wait bytea[],
    p_run bytea[], p_sent int8[]
) returns void language sql as $$
    insert into headrace.history (start, id, span, queue, task, ending, count, wait, run, sent)
    select * from unnest(p_start, p_id, p_span, p_queue, p_task, p_ending, p_count, p_wait, p_run, p_sent)
    -- In the order of the key, so that two callers with the same rollups do not wait for each other in a circle.
    order by 1, 2 on conflict do nothing
$$;

-- fold_history: replace rollups by others. Returns false, and changes nothing, if one of those to replace is gone.
create or replace function headrace.fold_history(
    g_start int4[], g_id uuid[],
    p_start int4[], p_id uuid[], p_span int2[], p_queue text[], p_task text[], p_ending text[], p_count int8[], p_wait bytea[],
    p_run bytea[], p_sent int8[]
) returns bool language plpgsql as $$
begin
    -- Two folds take turns: each finds the rollups of the other gone.
    insert into headrace.history_fold (folds) values (1)
    on conflict (one) do update set folds = headrace.history_fold.folds + 1;
    if (select count(*) from unnest(g_start, g_id) g(start, id)
            join headrace.history h on h.start = g.start and h.id = g.id) < cardinality(g_id) then
        update headrace.history_fold set folds = folds - 1;
        return false;
    end if;
    delete from headrace.history h using unnest(g_start, g_id) g(start, id) where h.start = g.start and h.id = g.id;
    perform headrace.add_history(p_start, p_id, p_span, p_queue, p_task, p_ending, p_count, p_wait, p_run, p_sent);
    return true;
end $$;
