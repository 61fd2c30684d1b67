-- Jobs that wait, and what follows from the ends of others. Needs links.
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
      recount(g, one[1], one[2], own.told ~= '' and own.told or nil, told ~= '' and told or nil, 1)
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

-- Let follow what follows, and write all of it. Answers whether another queue of a cluster is to be told something, and whether
-- there is more to follow.
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
  return not HOME and c('EXISTS', KEYS[1] .. OWING) == 1, more
end
