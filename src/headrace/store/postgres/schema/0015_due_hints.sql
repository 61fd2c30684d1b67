-- `headrace.enqueue` tells workers about delayed jobs, too, because they no longer look for due jobs every second.
select;
