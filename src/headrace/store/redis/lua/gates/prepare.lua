-- On a cluster, before a call over several queues: make its gates here, and hold those that get members.
-- ARGV: 1 clock, 2 the batch's 14 bytes, 3 msgpack {gates as in enqueue/links.lua, gates that get members, edge or '' of each}
-- Answer: {'ok'}, {'over', gate}, or {'unlisted', mark}
local gone = unlisted(KEYS[1])
if gone then return {'unlisted', gone} end
local p, prefix = KEYS[1], ARGV[2]
local words = cmsgpack.unpack(ARGV[3])
local new_gates, intos = words[1], words[2]
moment = clock(ARGV[1])
local made_here = {}
for n = 1, #new_gates, 6 do made_here[new_gates[n]] = new_gates[n + 3] == 0 end

-- A call that is repeated finds members of its batch.
local function has_members(into) return #c('ZRANGEBYLEX', p .. MEMBERS .. into, '[' .. prefix, '[' .. prefix .. '\255', 'LIMIT', 0, 1) > 0 end
for i = 1, #intos, 2 do
  local into, edge = intos[i], intos[i + 1]
  local gate = gate_at(p, into)
  if not gate and not made_here[into] then return {'over', into} end
  if gate and not has_members(into) and not takes(p, into, edge ~= '' and edge) then return {'over', into} end
end
make_gates(p, new_gates)
for i = 1, #intos, 2 do
  local gate = gate_at(p, intos[i])
  if not is_over(gate) or gate.written then
    if not string.find(gate.holds, prefix, 1, true) then gate.holds = gate.holds .. prefix end
    touch(gate)
  end
end
finish_links(p)
return {'ok'}
