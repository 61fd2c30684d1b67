-- name: untidy
select exists (select 1 from headrace_inbox) or exists (select 1 from headrace_unsorted);
