-- `claim` says whether it may have left jobs, so that a worker that has taken all of them sleeps without another claim.
select;
