-- On a cluster: take what another queue tells. Each word counts once: they are numbered, and this queue knows the last.
-- ARGV: 1 clock, 2 prefix of the other queue, 3… words, in their order
-- Answer: {'ok', 1: this queue is to tell others something}, or {'unlisted', mark}
local gone = unlisted(KEYS[1])
if gone then return {'unlisted', gone} end
local p, other = KEYS[1], ARGV[2]
moment = clock(ARGV[1])
c('DEL', p)  -- as in settle
local field = 'heard:' .. other
local last = tonumber(c('HGET', p .. COUNTERS, field) or 0)

local takes_word = {
  -- A gate is made.
  g = function(...) make_gate(p, ...) end,
  -- Members have ended: by how many more or fewer are done, dead, cancelled.
  c = function(into, o, d, cancelled)
    local gate = gate_at(p, into)
    if not gate then return end
    gate.o, gate.d, gate.c = gate.o + o, gate.d + d, gate.c + cancelled
    touch(gate)
  end,
  -- Jobs, or a gate, are members.
  m = function(into, edge, size, o, d, cancelled) add_members(p, into, edge, size, o, d, cancelled) end,
  -- Jobs, or a closed lane, wait for a job or a gate here, or one does no more.
  w = function(target, needs, ...) await(other, {...}, target, needs, p) end,
  l = function(target, needs, lane, first) await(other, {first}, target, needs, p, lane) end,
  u = function(target, waiter, lane) c('ZREM', p .. WAITERS .. target, waiter .. other .. (lane or '')) end,
  -- What a job, or a closed lane, here waits for there says what becomes of it.
  v = function(id, target, needs, says, lane)
    if lane ~= '' then heard_closed(p, lane, id, says) else heard(p, id, target, needs, says) end
  end,
}
for a = 3, #ARGV do
  local number = read('>d', ARGV[a])
  if number > last then
    local words = cmsgpack.unpack(sub(ARGV[a], 9))
    takes_word[words[1]](unpack(words, 2))
    last = number
  end
end
c('HSET', p .. COUNTERS, field, format('%.0f', last))
return {'ok', finish_links(p) and 1 or 0}
