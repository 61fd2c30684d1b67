-- A chain is one row of `blocked`, which is shortened as its jobs are released. Room for the new versions of the rows of a page.
alter table headrace.blocked set (fillfactor = 60);
