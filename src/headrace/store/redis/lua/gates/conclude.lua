-- On a cluster, after a call over several queues: its gates are held no more, and those that it seals are sealed.
-- ARGV: 1 clock, 2 the batch's 14 bytes, 3 msgpack {gates that are held, gates to seal, (gate, member that is not stored)…}
-- Answer: {'ok', 1: this queue is to tell others something}
local p, prefix = KEYS[1], ARGV[2]
local words = cmsgpack.unpack(ARGV[3])
moment = clock(ARGV[1])
for i = 1, #words[3], 2 do add_members(p, words[3][i], words[3][i + 1] .. words[3][i + 1], 1, 0, 0, 1) end
for _, id in ipairs(words[1]) do
  local gate = gate_at(p, id)
  local at = gate and string.find(gate.holds, prefix, 1, true)
  if at then
    gate.holds = sub(gate.holds, 1, at - 1) .. sub(gate.holds, at + 14)
    touch(gate)
  end
end
for _, id in ipairs(words[2]) do seal(p, id) end
return {'ok', finish_links(p) and 1 or 0}
