-- Why a worker starts no job now, as JSON, so that `explain` can say so.
alter table headrace_worker add column hindered text not null default '[]';
