-- A gate that is sealed and has members that run still is in neither index, so that the end of one of them, which is most of what
-- happens to a gate, changes one page.
drop index headrace_gate_changed;
create index headrace_gate_over on headrace_gate (changed_at) where sealed and size = done + dead + cancelled;
create index headrace_gate_open on headrace_gate (changed_at) where not sealed;
