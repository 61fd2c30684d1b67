-- End a gate that waits for a signal, and make it if there is none.
-- ARGV: 1 clock, 2 a random text of this call, 3 µs to keep the value, 4 value, 5… the gate as in enqueue/links.lua
-- Answer: {'ok', 1 or 0: it was signalled before, 1: another queue of a cluster is to be told something}, or on a cluster {'unlisted', mark}
local gone = unlisted(KEYS[1])
if gone then return {'unlisted', gone} end
local g, id = home(KEYS[1]), ARGV[5]
moment = clock(ARGV[1])
-- A call that is repeated after a lost answer answers as before.
local by = c('HGET', g .. GATE .. id, 'x')
if by then return {'ok', by == ARGV[2] and 1 or 0, 0} end
make_gate(g, id, ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[10])
local gate, said = gate_at(g, id), 0
if gate.signalled then
  said = 1
  gate.o, gate.kept = 1, format('%.0f', moment + ARGV[3])
  c('HSET', g .. GATE .. id, 'v', ARGV[4], 'x', ARGV[2], 'u', gate.kept)
  touch(gate)
end
return {'ok', said, finish_links(g) and 1 or 0}
