-- Links: the ends of jobs count on gates, and let jobs go that wait. Needs records, ends, rings and back.
-- A script notes what has changed (`turned`, `touch`). `finish_links` of waits.lua lets follow what follows from it, as far as the
-- effort of one script goes. The rest is in CHANGED, and promote goes on with it. What concerns another queue of a cluster goes into OWED,
-- and a client tells it there.
local moment = 0  -- the script's time
local effort = 300  -- jobs that one script lets go or cancels
local NEXT = 0.3  -- what one of a chain costs of that
local followed = 0  -- those that it has
local gates, touched, todo, linked, owed, debtors = {}, {}, {}, {}, {}, {}
local freed, put_off = {}, {}  -- by queue: jobs that are ready, jobs that are scheduled
local unchained, nexts = {}, {}  -- by queue: how many jobs have left their chains otherwise, and by lane the elements of those that go

local function is_gate(id) return floor(byte(id, 7) / 16) == 8 end

-- On one server every queue is at hand. On a cluster only the script's own is.
local function at_hand(p) return HOME or p == KEYS[1] end

-- A queue of a cluster is to be told something. A client does that, in this order, and each word counts once.
local function owe(p, ...)
  local words = owed[p]
  if not words then words = {} owed[p] = words debtors[#debtors + 1] = p end
  words[#words + 1] = cmsgpack.pack({...})
end

-- ── gates ────────────────────────────────────────────────────────────────────
-- o, d and c are the members that are done, dead and cancelled; `told` is what a gate counts as a member of others: one of these, or ''.

local function gate_at(g, id)
  local known = gates[id]
  if known == nil then
    local f = c('HMGET', g .. GATE .. id, 's', 'o', 'd', 'c', 'S', 'h', 't', 'k', 'n', 'u')
    known = f[1] and {g = g, id = id, s = tonumber(f[1]), o = tonumber(f[2]), d = tonumber(f[3]), c = tonumber(f[4]),
      sealed = f[5] == '1', holds = f[6], told = f[7], kind = f[8], signalled = f[9] == '1', kept = f[10]} or false
    gates[id] = known
  end
  return known
end

-- While a call over several queues of a cluster adds members, the gate is held: it is not sealed.
local function is_sealed(gate) return gate.sealed and gate.holds == '' end
local function is_over(gate) return is_sealed(gate) and gate.o + gate.d + gate.c == gate.s end

-- What becomes of a job that waits: 'r' is released, 'c' cancelled, nil waits. As in model/gate.py.
local function verdict(needs, gate)
  local over = is_over(gate)
  if needs == 'd' then return gate.c > 0 and 'c' or over and gate.o == gate.s and 'r' or nil end
  if needs == 'e' then return over and 'r' or nil end
  if gate.d > 0 or gate.c > 0 then return 'r' end
  return over and gate.o == gate.s and 'c' or nil
end

local function as_member(gate)
  if not is_over(gate) then return '' end
  return gate.o == gate.s and 'o' or gate.d > 0 and 'd' or 'c'
end

-- A job as a gate of one member; a job that is not stored any more is cancelled.
local function alone(letter)
  return {s = 1, o = letter == 'o' and 1 or 0, d = letter == 'd' and 1 or 0, c = letter == 'c' and 1 or 0, sealed = true, holds = ''}
end

-- Its followers are to be looked at; `silent`: nothing that its readers see has changed.
local function touch(gate, silent)
  if not gate.written then gate.written = true touched[#touched + 1] = gate end
  if silent then return end
  gate.changed = true
  if not gate.queued then gate.queued = true todo[#todo + 1] = 'g' .. gate.id end
end

-- By which set prune finds it: over, signalled, or not sealed.
local SETS = {o = OVER_GATES, s = SIGNALS, u = UNSEALED_GATES}
local function write_gates()
  local at = format('%.0f', moment)
  for _, gate in ipairs(touched) do
    local key = gate.g .. GATE .. gate.id
    local kind = not is_sealed(gate) and 'u' or is_over(gate) and (gate.kept ~= '' and 's' or 'o') or ''
    if gate.kind ~= kind and gate.kind ~= '' then c('ZREM', gate.g .. SETS[gate.kind], gate.id) end
    if kind ~= '' and (gate.changed or gate.kind ~= kind) then
      c('ZADD', gate.g .. SETS[kind], kind == 's' and gate.kept or at, gate.id)
    end
    gate.kind = kind
    local words = {'s', gate.s, 'o', gate.o, 'd', gate.d, 'c', gate.c, 'S', gate.sealed and 1 or 0, 'h', gate.holds, 't', gate.told,
      'k', kind}
    if gate.changed then words[17], words[18] = 'a', at end
    c('HSET', key, unpack(words))
    gate.written, gate.changed = nil, nil
  end
  touched = {}
end

-- ── members ──────────────────────────────────────────────────────────────────
-- What LINKS says of a batch are entries of from, to, gate and the gate's queue ('': it is at hand). A gate of zeros stands for the
-- jobs that are awaited, and one of zeros and a 1 for a chain: then the queue is the place of its first job, and its lane. Of a gate LINKS says
-- the same, with from and to 0.
local AWAITED = string.rep('\0', 16)
local CHAINED = string.rep('\0', 15) .. '\1'
local NONE = {}

local function link(from, to, into, far) return pack('>I2I2c16I2', from, to, into, #far) .. far end

local function read_links(raw)
  local known, at = {raw = raw, single = NONE, runs = NONE, chains = NONE}, 1
  while at <= #raw do
    local from, to, into, size
    from, to, into, size, at = read('>I2I2c16I2', raw, at)
    local far = sub(raw, at, at + size - 1)
    at = at + size
    if into == AWAITED then
      known.first, known.last = from, to
    elseif into == CHAINED then
      if known.chains == NONE then known.chains = {} end
      known.chains[#known.chains + 1] = {from, to, read('>d', far), sub(far, 9)}
    elseif from == to then
      if known.single == NONE then known.single = {} end
      local single = known.single[from] or {}
      known.single[from] = single
      single[#single + 1] = {into, far}
    else
      if known.runs == NONE then known.runs = {} end
      known.runs[#known.runs + 1] = {from, to, into, far}
    end
  end
  return known
end

local function links_of(p, batch)
  local known = linked[p .. batch]
  if known == nil then
    local raw = c('HGET', p .. LINKS, batch)
    known = raw and read_links(raw) or false
    linked[p .. batch] = known
  end
  return known
end

-- Written once for all entries of a call, because each adds to what is read and written for the next.
local function add_links(p, batch, entries)
  local raw, known, at = c('HGET', p .. LINKS, batch) or '', {}, 1
  while at <= #raw do
    local _, _, _, size, behind = read('>I2I2c16I2', raw, at)
    known[sub(raw, at, behind + size - 1)] = true
    at = behind + size
  end
  local words = {raw}
  for _, entry in ipairs(entries) do
    if not known[entry] then
      known[entry] = true
      words[#words + 1] = entry
    end
  end
  if #words == 1 then return end
  c('HSET', p .. LINKS, batch, table.concat(words))
  -- Settle reads the token of its lease, and this with it.
  c('HSET', p .. TOKENS, 'links', 1)
  linked[p .. batch] = nil
end

local function add_link(p, batch, entry) add_links(p, batch, {entry}) end

-- Jobs of this batch from one to the other are awaited: one entry for all of them.
local function add_awaited(p, batch, from, to)
  local known = links_of(p, batch)
  local before = known and known.first
  if before and before <= from and known.last >= to then return end
  local raw = known and known.raw or ''
  if before then
    local entry = link(before, known.last, AWAITED, '')
    local at = string.find(raw, entry, 1, true)
    raw = sub(raw, 1, at - 1) .. sub(raw, at + #entry)
    from, to = min(from, before), max(to, known.last)
  end
  c('HSET', p .. LINKS, batch, raw .. link(from, to, AWAITED, ''))
  c('HSET', p .. TOKENS, 'links', 1)
  linked[p .. batch] = nil
end

local far_counts = {}

-- So many members count otherwise on a gate than before: o, d, c, or nil while they have not ended.
local function recount(g, into, far, before, after, count)
  if before == after then return end
  local gate
  if far ~= '' then
    gate = far_counts[into]
    if not gate then gate = {far = far, o = 0, d = 0, c = 0} far_counts[into] = gate end
  else
    gate = gate_at(g, into)
    if gate then touch(gate) end
  end
  if not gate then return end
  if before then gate[before] = gate[before] - count end
  if after then gate[after] = gate[after] + count end
end

-- The jobs of a batch from one place to another have ended, or have not any more.
local function turned_run(p, batch, from, to, before, after)
  local known = links_of(p, batch)
  if not known then return end
  local g = home(p)
  for ord, into in pairs(known.single) do
    if from <= ord and ord <= to then for _, one in ipairs(into) do recount(g, one[1], one[2], before, after, 1) end end
  end
  for _, run in ipairs(known.runs) do
    local count = min(to, run[2]) - max(from, run[1]) + 1
    if count > 0 then recount(g, run[3], run[4], before, after, count) end
  end
  if not after then return end
  for _, chain in ipairs(known.chains) do
    for ord = max(from + 1, chain[1]), after ~= 'd' and min(to + 1, chain[2]) or -1 do todo[#todo + 1] = {p, batch, ord, chain, after} end
  end
  if not known.first then return end
  for ord = max(from, known.first), min(to, known.last) do
    local id = batch .. pack('>I2', ord)
    if c('EXISTS', g .. WAITERS .. id) == 1 then todo[#todo + 1] = after .. id end
  end
end

local function turned(p, id, before, after)
  local ord = read('>I2', id, 15)
  turned_run(p, sub(id, 1, 14), ord, ord, before, after)
end
