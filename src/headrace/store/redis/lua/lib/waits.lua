-- Jobs that wait, and what follows from what they wait for. Needs closed and chains.
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
  if c('HDEL', p .. BLOCKED, id) == 0 and leave_chain(p, id) then return end
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
  if how == 'u' and lane then
    if not leave_closed(p, lane, id, index) then return end
    local own, at = own_place(lane, seq)
    ended(p, id, 'c', moment, loose(at, own, note, what))
    turned(p, id, nil, 'c')
  elseif how == 'u' then
    local waits, record = blocked_of(what)
    cancel_blocked(p, id, waits, record, note)
  else
    cancel_waiting(p, id, moment, note, how, what, lane, seq, index)
    turned(p, id, nil, 'c')
  end
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
  if says == 'r' or (says == 'c' and read('>I4', el, 17) > 0) then
    unblock(p, id, waits, target)
    let_go(p, id, waits, record, seq, lane, said, el)
  else
    cancel_blocked(p, id, waits, record, why_cancelled(says, needs, target), target)
  end
end

-- ── what follows ─────────────────────────────────────────────────────────────

-- Of a job that waits WAITERS has the need, its id and the prefix of its queue. Of a closed lane it has the need as a capital letter, the id of
-- its first job, the prefix and the lane.
local RANGES = {{'[d', '(e', '[D', '(E'}, {'[e', '(f', '[E', '(F'}, {'[f', '(g', '[F', '(G'}}

-- What a gate says to each need, and the ranges of WAITERS of those that it decides.
local function verdicts(gate, kind)
  local says, ranges, decided = {}, {}, 0
  for i, needs in ipairs({'d', 'e', 'f'}) do
    says[needs] = kind == 'n' and 'n' or verdict(needs, gate)
    if says[needs] then
      decided = decided + 1
      for r = 1, 4 do ranges[#ranges + 1] = RANGES[i][r] end
    end
  end
  return {says, decided == 3 and {'-', '+'} or ranges}
end
local known_verdicts = {}  -- of jobs by their state, and of a gate that was never sealed

-- The need, the prefix and the id of such an entry, and its lane, or ''.
local function waiter_of(entry)
  if byte(entry) > 96 then return sub(entry, 1, 1), sub(entry, 18), sub(entry, 2, 17), '' end
  local p, lane = match(entry, '^(.-}:)(.*)$', 18)
  return string.lower(sub(entry, 1, 1)), p, sub(entry, 2, 17), lane
end

-- Look at the followers of a gate ('g' and its id), of a job that ended ('o', 'd' or 'c' and its id), or of a gate that was never
-- sealed ('n'), at a job of a chain ('s', how the one before it ended, its id and the prefix of its queue), or go on to cancel a closed
-- lane ('l', the prefix of its queue and its name). Answers whether all were looked at.
local function look_at(g, entry)
  local kind, id = sub(entry, 1, 1), sub(entry, 2)
  if kind == 's' then
    follow_words(entry)
    return true
  end
  if kind == 'l' then return cancel_closed(match(id, '^(.-}:)(.*)$')) end
  local own = kind == 'g' and gate_at(g, id)
  local key = g .. WAITERS .. id
  if not own and not known_verdicts[kind] then known_verdicts[kind] = verdicts(alone(kind == 'g' and 'c' or kind), kind) end
  local says, ranges = unpack(own and verdicts(own, kind) or known_verdicts[kind])
  for r = 1, #ranges, 2 do
    local asked, count
    repeat
      if effort <= 0 then return false end
      asked = min(100, effort)
      local some = c('ZRANGEBYLEX', key, ranges[r], ranges[r + 1], 'LIMIT', 0, asked)
      count = #some
      effort, followed = effort - count, followed + count
      if count > 0 then c('ZREM', key, unpack(some)) end
      for i = 1, count do
        local needs, p, waiter, lane = waiter_of(some[i])
        if not at_hand(p) then
          owe(p, 'v', waiter, id, needs, says[needs], lane)
        elseif lane ~= '' then
          heard_closed(p, lane, waiter, says[needs])
        else
          heard(p, waiter, id, needs, says[needs])
        end
      end
    until count < asked
  end
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
  place_nexts()
  for p, count in pairs(unchained) do bump(p, 'b', -count) end
  freed, put_off, unchained = {}, {}, {}
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
    local in_chain = type(entry) == 'table'
    local gate = not in_chain and byte(entry) == 103 and gates[sub(entry, 2)]
    if gate then gate.queued = nil end
    if effort <= 0 then
      more = true
    elseif in_chain then
      follow_chain(unpack(entry))
      at = at + 1
    elseif look_at(g, entry) then
      at = at + 1
    else
      more = true
    end
  end
  if more then
    local rest = {}
    for i = at, #todo do rest[#rest + 1] = type(todo[i]) == 'table' and chain_words(todo[i]) or todo[i] end
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
