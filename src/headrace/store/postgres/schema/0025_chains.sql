-- A chain is one row of `blocked`, which is shortened as its jobs are released. Room for the new versions of the rows of a page.
alter table headrace.blocked set (fillfactor = 60);
-- The arguments of this function have changed. This version creates it again.
drop function if exists headrace.release(tid[], timestamptz);
