-- `delete` takes the time by which a job has ended.
drop function if exists headrace.delete(uuid[], text[]);
