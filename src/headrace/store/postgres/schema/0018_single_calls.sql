-- `claim` says whether it may have left jobs, so that a worker that has taken all of them sleeps without another claim. The
-- client says in turn that the last claim left nothing (p_sole). `enqueue_one` stores a single job.
drop function if exists headrace.claim(text[], int4, uuid, uuid, interval, text, jsonb, int2[], int2[], int4[], text[],
    int2[], text[], text[], int4[], int2[], text[], text[], int8[], int2[], text[], text[], int8[], int8[], int4,
    int4, timestamptz, int4, bool, int2[], text[], text[], int4[], int8, bool);
