-- Reads in bounded statements. This version creates the functions again.
select;
