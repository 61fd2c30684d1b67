-- Gates are made, and get members and jobs that wait. Needs links.

-- A gate that is there stays as it is. words: id, queue, 1: sealed, 1: signalled, label, tenant.
local function make_gate(g, id, queue, sealed, signalled, label, tenant)
  if gate_at(g, id) then return end
  local at = format('%.0f', moment)
  c('HSET', g .. GATE .. id, 's', signalled, 'n', signalled, 'u', '', 'q', queue, 'l', label, 'w', tenant, 'm', at, 'a', at)
  c('HINCRBY', g .. COUNTERS, 'gates', 1)
  if label ~= '' then
    c('ZADD', g .. GROUPS, 0, id)
    c('ZADD', g .. TENANT_GROUPS .. tenant, 0, id)
  end
  local gate = {g = g, id = id, s = signalled, o = 0, d = 0, c = 0, sealed = sealed == 1, holds = '', told = '', kind = '',
    signalled = signalled == 1, kept = ''}
  gates[id] = gate
  touch(gate)
end

local function make_gates(g, words)
  for w = 1, #words, 6 do make_gate(g, unpack(words, w, w + 5)) end
end

-- Whether a gate takes a member; one that it has already changes nothing.
local function takes(g, into, edge)
  local gate = gate_at(g, into)
  if gate and edge and c('ZSCORE', g .. MEMBERS .. into, edge) then return true end
  return gate and not gate.signalled and not is_over(gate)
end

-- Jobs of one batch, or one gate, are members from here on. o, d and c of them have ended.
local function add_members(g, into, edge, size, o, d, cancelled)
  local gate = gate_at(g, into)
  if not gate or c('ZADD', g .. MEMBERS .. into, 'NX', 0, edge) == 0 then return end
  gate.s, gate.o, gate.d, gate.c = gate.s + size, gate.o + o, gate.d + d, gate.c + cancelled
  touch(gate)
end

local function seal(g, id)
  local gate = gate_at(g, id)
  if gate and not gate.sealed then
    gate.sealed = true
    touch(gate)
  end
end

-- These jobs wait for a gate, as BLOCKED says already. `at`: its queue. Those that it lets go at once follow like others.
-- lane: they are a closed lane, as CLOSED says, and its first job stands for all.
local function await_gate(p, ids, target, needs, at, lane)
  if not at_hand(at) then
    if lane then owe(at, 'l', target, needs, lane, ids[1]) return end
    for a = 1, #ids, 500 do owe(at, 'w', target, needs, unpack(ids, a, min(#ids, a + 499))) end
    return
  end
  local g, words, letter = home(at), {}, lane and string.upper(needs) or needs
  for i = 1, #ids do words[2 * i - 1], words[2 * i] = 0, letter .. ids[i] .. p .. (lane or '') end
  each('ZADD', g .. WAITERS .. target, words)
  if is_gate(target) and verdict(needs, gate_at(g, target) or alone('c')) then todo[#todo + 1] = 'g' .. target end
end
