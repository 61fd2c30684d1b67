-- Looks in bounded statements: the functions of this version are made anew.
select;
