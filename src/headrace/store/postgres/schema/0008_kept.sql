-- Results with a time to live, so that `prune` can drop their bytes when it is over. What stays is an empty result, which
-- says that there was one; a job without a time to live has no entry.
create index ending_result_until on headrace.ending (result_until) where result_until is not null and octet_length(result) > 0;
