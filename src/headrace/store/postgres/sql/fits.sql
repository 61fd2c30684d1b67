-- fits: whether a job row passes the plain part of a filter. Inlined by the planner.
create or replace function headrace.fits(j headrace.job, p_queue text, p_task text, p_tenant text, p_since timestamptz, p_until timestamptz)
returns bool language sql immutable as $$
    select (p_queue is null or j.queue = p_queue) and (p_task is null or j.task = p_task)
        and (p_tenant is null or coalesce(j.tenant, '') = p_tenant)
        and (p_since is null or j.enqueued_at >= p_since) and (p_until is null or j.enqueued_at < p_until)
$$;

-- mentions: whether the text is in the task's name, the note, or a failure's kind or message.
create or replace function headrace.mentions(p_batch uuid, p_ord int4, p_task text, p_note text, p_text text)
returns bool language sql stable as $$
    select strpos(p_task, p_text) > 0 or coalesce(strpos(p_note, p_text), 0) > 0 or exists (
        select from headrace.failure f where f.batch = p_batch and f.ord = p_ord
            and (strpos(f.kind, p_text) > 0 or strpos(f.message, p_text) > 0))
$$;
