-- Dead and cancelled jobs by key, so that a search passes over jobs that are done without reading them.
create index headrace_ending_rare on headrace_ending (state, lo) where state in ('dead', 'cancelled');
