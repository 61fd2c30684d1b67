-- Finished steps of tasks: the journals of their jobs.
create table headrace_step (
    id     integer primary key,     -- the order in which they were written
    key    integer not null,
    name   text    not null,
    number integer not null,
    digest blob    not null,
    value  blob,                    -- null: None
    at     integer not null
);
create unique index headrace_step_job on headrace_step (key, name, number);
