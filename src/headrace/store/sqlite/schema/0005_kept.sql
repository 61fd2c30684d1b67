-- Results with a time to live, so that `prune` can drop their bytes when it is over. What stays is an empty result, which
-- says that there was one; a job without a time to live has no entry.
create index headrace_ending_result on headrace_ending (result_until)
where result_until is not null and length(result) > 0;
