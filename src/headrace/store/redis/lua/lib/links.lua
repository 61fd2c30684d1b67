-- Links: the ends of jobs count on gates, and let jobs go that wait. Needs records, ends, rings and back.
-- A script notes what has changed (`turned`, `touch`). `finish_links` lets follow what follows from it, as far as the effort of one
-- script goes. The rest is in CHANGED, and promote goes on with it. What concerns another queue of a cluster goes into OWED,
-- and a client tells it there.
local moment = 0  -- the script's time
local effort = 300  -- jobs that one script lets go or cancels
local followed = 0  -- those that it has
local gates, touched, todo, linked, owed, debtors = {}, {}, {}, {}, {}, {}
local freed, put_off = {}, {}  -- by queue: jobs that are ready, jobs that are scheduled

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
    c('HSET', key, 's', gate.s, 'o', gate.o, 'd', gate.d, 'c', gate.c, 'S', gate.sealed and 1 or 0, 'h', gate.holds,
      't', gate.told, 'k', kind)
    if gate.changed then c('HSET', key, 'a', at) end
    gate.written, gate.changed = nil, nil
  end
  touched = {}
end

-- ── members ──────────────────────────────────────────────────────────────────
-- What LINKS says of a batch are entries of from, to, gate and the gate's queue ('': it is at hand). A gate of zeros stands for the
-- jobs that are awaited. Of a gate it says the same, with from and to 0.
local AWAITED = string.rep('\0', 16)
local NONE = {}

local function link(from, to, into, far) return pack('>I2I2c16I2', from, to, into, #far) .. far end

local function links_of(p, batch)
  local known = linked[p .. batch]
  if known == nil then
    local raw = c('HGET', p .. LINKS, batch)
    known = raw and {raw = raw, single = NONE, runs = NONE} or false
    local at = 1
    while raw and at <= #raw do
      local from, to, into, size
      from, to, into, size, at = read('>I2I2c16I2', raw, at)
      local far = sub(raw, at, at + size - 1)
      at = at + size
      if into == AWAITED then
        known.first, known.last = from, to
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
    linked[p .. batch] = known
  end
  return known
end

local function add_link(p, batch, entry)
  local known = links_of(p, batch)
  local raw = known and known.raw or ''
  if string.find(raw, entry, 1, true) then return end
  c('HSET', p .. LINKS, batch, raw .. entry)
  -- Settle reads the token of its lease, and this with it.
  c('HSET', p .. TOKENS, 'links', 1)
  linked[p .. batch] = nil
end

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

-- A member counts otherwise on a gate than before: o, d, c, or nil while it has not ended.
local function recount(g, into, far, before, after)
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
  if before then gate[before] = gate[before] - 1 end
  if after then gate[after] = gate[after] + 1 end
end

-- A job has ended, or has not any more.
local function turned(p, id, before, after)
  local known = links_of(p, sub(id, 1, 14))
  if not known then return end
  local g, ord = home(p), read('>I2', id, 15)
  for _, one in ipairs(known.single[ord] or NONE) do recount(g, one[1], one[2], before, after) end
  for _, run in ipairs(known.runs) do
    if run[1] <= ord and ord <= run[2] then recount(g, run[3], run[4], before, after) end
  end
  if after and known.first and known.first <= ord and ord <= known.last and c('EXISTS', g .. WAITERS .. id) == 1 then
    todo[#todo + 1] = after .. id
  end
end

-- ── jobs that wait ───────────────────────────────────────────────────────────
-- A blocked job is {due kind, due, then the id, the need and the queue of each that it waits for} and its record.

local function blocked_of(raw)
  local size = read('>I2', raw)
  return cmsgpack.unpack(sub(raw, 3, 2 + size)), sub(raw, 3 + size)
end

local function blocked(waits, record)
  local head = cmsgpack.pack(waits)
  return pack('>I2', #head) .. head .. record
end

-- It waits no more; those that wait for `but` are taken off together.
local function unblock(p, id, waits, but)
  c('HDEL', p .. BLOCKED, id)
  c('ZREM', p .. SUSPENDED, id)
  for w = 3, #waits, 3 do
    if waits[w] ~= but then
      if at_hand(waits[w + 2]) then
        c('ZREM', home(waits[w + 2]) .. WAITERS .. waits[w], waits[w + 1] .. id .. p)
      else
        owe(waits[w + 2], 'u', waits[w], waits[w + 1] .. id)
      end
    end
  end
end

-- It is ready, or scheduled: a delay counts from here on.
local function let_go(p, id, waits, record, seq, lane, _, el)
  local first = read('>I4', el, 17) == 0
  local run_at = first and ((waits[1] == 1 and moment + waits[2]) or (waits[1] == 2 and waits[2])) or 0
  local into = run_at > moment and put_off or freed
  local jobs = into[p]
  if not jobs then jobs = {} into[p] = jobs end
  jobs[#jobs + 1] = {lane, seq, id, record, run_at}
end

local function cancel_blocked(p, id, waits, record, note, but)
  local seq, lane, _, el = opened(record)
  unblock(p, id, waits, but)
  ended(p, id, 'c', moment, loose(seq, lane, note, restated(el, 0)))
  turned(p, id, nil, 'c')
end

-- Cancel a job that waits in whatever way, as `where` has found it.
local function cancel_any(p, id, note, how, what, lane, seq, index)
  if how == 'u' then
    local waits, record = blocked_of(what)
    cancel_blocked(p, id, waits, record, note)
  else
    cancel_waiting(p, id, moment, note, how, what, lane, seq, index)
    turned(p, id, nil, 'c')
  end
end

local function uuid(id)
  local hex = string.gsub(id, '.', function(one) return format('%02x', byte(one)) end)
  return sub(hex, 1, 8) .. '-' .. sub(hex, 9, 12) .. '-' .. sub(hex, 13, 16) .. '-' .. sub(hex, 17, 20) .. '-' .. sub(hex, 21)
end

-- What it waits for says 'r', 'c', or 'n': it was never sealed.
local function heard(p, id, target, needs, says)
  local raw = c('HGET', p .. BLOCKED, id)
  if not raw then return end
  local waits, record = blocked_of(raw)
  local seq, lane, said, el = opened(record)
  local waiting = false
  for w = 3, #waits, 3 do waiting = waiting or waits[w] == target end
  if not waiting then return end
  if says == 'n' then
    cancel_blocked(p, id, waits, record, 'its group was never completed', target)
  elseif says == 'r' or read('>I4', el, 17) > 0 then
    unblock(p, id, waits, target)
    let_go(p, id, waits, record, seq, lane, said, el)
  else
    local note = needs == 'f' and 'not needed: ' .. uuid(target) .. ' is done' or uuid(target) .. ', which it waited for, was cancelled'
    cancel_blocked(p, id, waits, record, note, target)
  end
end

-- ── what follows ─────────────────────────────────────────────────────────────

local BEHIND = {d = '(e', e = '(f', f = '(g'}

-- By need what becomes of the jobs that wait for this, and whether something becomes of all of them.
local function outlook(gate)
  local says = {d = verdict('d', gate), e = verdict('e', gate), f = verdict('f', gate)}
  return {says, says.d and says.e and says.f}
end
local outlooks = {n = {{d = 'n', e = 'n', f = 'n'}, true}}  -- of jobs by their state, and of a gate that was never sealed

-- The first of the jobs that wait and of which something becomes, at most so many.
local function some_followers(key, says, all, most)
  if all then return c('ZRANGE', key, 0, most - 1) end
  for needs, behind in pairs(BEHIND) do
    local some = says[needs] and c('ZRANGEBYLEX', key, '[' .. needs, behind, 'LIMIT', 0, most) or NONE
    if #some > 0 then return some end
  end
  return NONE
end

-- Look at the followers of a gate ('g' and its id), of a job that ended ('o', 'd' or 'c' and its id), or of a gate that was never
-- sealed ('n'). Answers whether all were looked at.
local function look_at(g, entry)
  local kind, id = sub(entry, 1, 1), sub(entry, 2)
  local own = kind == 'g' and gate_at(g, id)
  local key = g .. WAITERS .. id
  if not own and not outlooks[kind] then outlooks[kind] = outlook(alone(kind == 'g' and 'c' or kind)) end
  local says, all = unpack(own and outlook(own) or outlooks[kind])
  repeat
    local most = min(100, effort)
    if most <= 0 then return false end
    local some = some_followers(key, says, all, most)
    effort, followed = effort - #some, followed + #some
    if #some > 0 then c('ZREM', key, unpack(some)) end
    for i = 1, #some do
      local needs, waiter, p = sub(some[i], 1, 1), sub(some[i], 2, 17), sub(some[i], 18)
      if at_hand(p) then heard(p, waiter, id, needs, says[needs]) else owe(p, 'v', waiter, id, needs, says[needs]) end
    end
  until #some == 0 or all and #some < most
  if not own then return true end
  local told = as_member(own)
  if told ~= own.told then
    local known = links_of(g, id)
    for _, one in ipairs(known and known.single[0] or NONE) do
      recount(g, one[1], one[2], own.told ~= '' and own.told or nil, told ~= '' and told or nil)
      effort, followed = effort - 1, followed + 1
    end
    own.told = told
    touch(own, true)
  end
  return true
end

local function place_freed()
  for p, jobs in pairs(freed) do
    local records = {}
    for i = 1, #jobs do records[2 * i - 1], records[2 * i] = jobs[i][3], jobs[i][4] end
    each('HSET', p .. LOOSE, records)
    come_back(p, jobs)
  end
  for p, jobs in pairs(put_off) do
    local records, scores, first = {}, {}, math.huge
    for i = 1, #jobs do
      records[2 * i - 1], records[2 * i] = jobs[i][3], jobs[i][4]
      scores[2 * i - 1], scores[2 * i] = jobs[i][5], jobs[i][3]
      first = min(first, jobs[i][5])
    end
    each('HSET', p .. LOOSE, records)
    each('ZADD', p .. SCHEDULED, scores)
    due_by(first, moment, p)
  end
  freed, put_off = {}, {}
end

local function write_owed()
  for into, gate in pairs(far_counts) do owe(gate.far, 'c', into, gate.o, gate.d, gate.c) end
  far_counts = {}
  for _, p in ipairs(debtors) do
    local words = owed[p]
    local last = c('HINCRBY', KEYS[1] .. COUNTERS, 'told', #words)
    for i = 1, #words do words[i] = pack('>d', last - #words + i) .. words[i] end
    each('RPUSH', KEYS[1] .. OWED .. p, words)
    c('SADD', KEYS[1] .. OWING, p)
  end
  owed, debtors = {}, {}
end

-- Go on with what earlier scripts have left. Answers how many entries that is.
local function take_changed(g, most)
  local some = c('LRANGE', g .. CHANGED, 0, most - 1)
  if #some == 0 then return 0 end
  c('LTRIM', g .. CHANGED, #some, -1)
  for i = 1, #some do todo[#todo + 1] = some[i] end
  return #some
end

-- Let follow what follows, and write all of it. Answers whether another queue of a cluster is to be told something.
local function finish_links(g)
  local at, more = 1, false
  while todo[at] and not more do
    local entry = todo[at]
    local gate = byte(entry) == 103 and gates[sub(entry, 2)]
    if gate then gate.queued = nil end
    if effort > 0 and look_at(g, entry) then at = at + 1 else more = true end
  end
  if more then
    local rest = {}
    for i = at, #todo do rest[#rest + 1] = todo[i] end
    each('RPUSH', g .. CHANGED, rest)
    by_then(DUE_QUEUES, 0, g)
    wake_janitor()
  end
  todo = {}
  write_gates()
  place_freed()
  write_owed()
  return not HOME and c('EXISTS', KEYS[1] .. OWING) == 1
end
