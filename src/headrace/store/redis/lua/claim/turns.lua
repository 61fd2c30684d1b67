-- Claim, fourth part: whose turn it is.

-- A tenant with several lanes: they share its turn.
local function draw_subring(q, whose, want)
  local key = q.p .. TENANT_RING .. whose
  local before = taken
  while taken - before < want and not stopped and budget > 0 do
    budget = budget - 1
    local lane = c('LPOP', key)
    if not lane then break end
    local rest = c('LLEN', key)
    local share = max(1, ceil((want - taken + before) / (rest + 1)))
    local got, more = draw(q, lane, head_of(q, lane, c('HGET', q.p .. FIRST_PLACES, lane)), share)
    if stopped and got == 0 then c('LPUSH', key, lane) elseif more then c('RPUSH', key, lane) end
  end
  local more = c('EXISTS', key) == 1
  if not more then c('SREM', q.p .. RINGED_TENANTS, whose) end
  return taken - before, more
end

-- One tenant's place in a ring: up to `want` jobs. Answers how many, and whether it stays there.
local function draw_entry(q, entry, head, want)
  local last = byte(entry, #entry)
  if last == 42 then return draw_subring(q, sub(entry, 1, -3), want) end
  if q.subrings == nil then q.subrings = c('EXISTS', q.p .. RINGED_TENANTS) == 1 end
  if q.subrings then
    local whose = whose_of(entry)
    if c('SISMEMBER', q.p .. RINGED_TENANTS, whose) == 1 then
      -- Other lanes of the tenant came since: this one joins them.
      c('RPUSH', q.p .. TENANT_RING .. whose, entry)
      if last <= 2 then q.left[#q.left + 1] = whose end
      return 0, false
    end
  end
  local got, more = draw(q, entry, head, want)
  if last <= 2 and not more then q.left[#q.left + 1] = whose_of(entry) end
  return got, more
end

local function weight_of(q, entry)
  local theirs = weights and weights[q.number + 1]
  return theirs and theirs[tenant_of(entry)] or 1
end

-- Until when the tenants of these entries are paused: false for those that are not, 0 for good.
local function pauses_of(turns)
  if not some_paused then return nil end
  local tenants, ends = {}, {}
  for i = 1, #turns do tenants[i] = tenant_of(turns[i]) end
  for i, record in ipairs(c('HMGET', g .. PAUSED_TENANTS, unpack(tenants))) do
    local since, till = pause_of(record, now)
    ends[i] = since and (till or 0)
  end
  return ends
end

-- What the limits of all these lanes are, in few words.
local function look_ahead(turns)
  local keys = {}
  for i = 1, #turns do
    if byte(turns[i], #turns[i]) == 1 then
      local own = keys_of(turns[i])
      for k = 1, #own do keys[#keys + 1] = own[k] end
    end
  end
  if #keys > 0 then look_at_limits(g, keys, now) end
end

-- A round gives every tenant in a ring one turn of `unit` jobs times its weight. The unit is chosen when the round begins
-- and kept until it ends, though claims of other sizes come in between: else a tenant whose turn always falls to small
-- claims, or to the ends of claims, would get less. ROUNDS keeps the unit, the turns that are left, and what the first is
-- still owed (0: all).
local function round_of(q, priority)
  local kept = c('HGET', q.p .. ROUNDS, priority)
  local unit, rest, owed = match(kept or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(unit), tonumber(rest or 0), tonumber(owed or 0), kept
end

local function keep_round(q, priority, unit, rest, owed, before)
  local kept = rest > 0 and format('%d %d %d', unit, rest, owed)
  if kept == before then return end
  if kept then c('HSET', q.p .. ROUNDS, priority, kept) else c('HDEL', q.p .. ROUNDS, priority) end
end

-- A ring of a few: so much that this claim is about one round. Of many: so much that it takes from about fifty.
local function new_round(q, ring)
  local size = c('LLEN', ring)
  if size > 50 then return max(1, floor(n / 50)), size end
  local sum, entries = 0, weights and c('LRANGE', ring, 0, -1)
  for i = 1, size do sum = sum + (weights and weight_of(q, entries[i]) or 1) end
  return max(1, ceil(left / max(1, sum))), size
end

-- Turns of these, the first entries of a ring. Answers those that stay, at which of them the claim ended (nil: it did not),
-- and what that one is owed still (0: all of its turn).
local function draw_turns(q, turns, unit, owed)
  local heads, paused = c('HMGET', q.p .. FIRST_PLACES, unpack(turns)), pauses_of(turns)
  local back = {}
  look_ahead(turns)
  for i = 1, #turns do
    if left <= 0 or stopped or budget <= 0 then return back, i, owed end
    budget = budget - 1
    local entry, got, more = turns[i], 0, false
    local due = owed > 0 and owed or unit * weight_of(q, entry)
    owed = 0
    if paused and paused[i] then
      park_paused(q, entry, tenant_of(entry), paused[i] > 0 and paused[i])
    else
      got, more = draw_entry(q, entry, head_of(q, entry, heads[i]), min(due, left))
    end
    if more then
      if (left <= 0 or stopped or budget <= 0) and got < due then return back, i, due - got end
      back[#back + 1] = entry
    end
  end
  return back, nil, 0
end

-- The ring of one priority. The tenant whose turn was cut short by a full batch is first next time, with what it is owed.
local function draw_priority(q, priority)
  local ring = q.p .. RING .. priority
  local unit, rest, owed, before = round_of(q, priority)
  while left > 0 and budget > 0 and not stopped do
    if rest == 0 then unit, rest = new_round(q, ring) end
    local turns = rest > 0 and c('LPOP', ring, min(1000, rest, ceil(left / unit)))
    if not turns then
      rest, owed = 0, 0
      if c('EXISTS', ring) == 0 then break end
    else
      local back, front
      back, front, owed = draw_turns(q, turns, unit, owed)
      if #back > 0 then c('RPUSH', ring, unpack(back)) end
      rest = rest - (front or #turns + 1) + 1
      if front then
        local again = {}
        for i = #turns, front, -1 do again[#again + 1] = turns[i] end
        c('LPUSH', ring, unpack(again))
      end
    end
  end
  if c('EXISTS', ring) == 0 then
    c('ZREM', q.p .. PRIORITIES, priority)
    rest = 0
  end
  keep_round(q, priority, unit, rest, owed, before)
end

-- Take from one tenant only, out of turn: its place is found by name, and removed if no job of it is left.
local function draw_tenant(q, priority)
  local p, whose = q.p, priority .. '|' .. only
  local ring = p .. RING .. priority
  local plain, single = whose .. '|', c('HGET', p .. SINGLE_LANES, whose)
  local function active(lane)
    return (q.heads[lane] or (q.heads[lane] == nil and c('HEXISTS', p .. FIRST_PLACES, lane) == 1)
      or c('SISMEMBER', p .. RETURNED_LANES, lane) == 1) and c('HEXISTS', p .. PARKED, lane) == 0
  end
  local function leave_ring(entry)
    local at = c('LPOS', ring, entry)
    local unit, rest, owed, before = round_of(q, priority)
    if at and at < rest then keep_round(q, priority, unit, rest - 1, at > 0 and owed or 0, before) end
    c('LREM', ring, 1, entry)
    if c('EXISTS', ring) == 0 then c('ZREM', p .. PRIORITIES, priority) end
  end
  forget_singles(q)
  budget = budget - 1
  if c('SISMEMBER', p .. RINGED_TENANTS, whose) == 1 then
    if c('HEXISTS', p .. PARKED, whose .. '|*') == 1 then return end
    local list = p .. TENANT_RING .. whose
    for _, lane in ipairs({plain, single or plain}) do
      -- A lane from before the others has a place of its own still.
      if active(lane) and not c('LPOS', list, lane) then
        leave_ring(lane)
        c('RPUSH', list, lane)
      end
    end
    if single then c('HDEL', p .. SINGLE_LANES, whose) end
    local _, more = draw_subring(q, whose, left)
    if not more then leave_ring(whose .. '|*') end
    return
  end
  for _, lane in ipairs(single and {single} or {plain}) do
    if active(lane) then
      local _, more = draw(q, lane, head_of(q, lane, c('HGET', p .. FIRST_PLACES, lane)), left)
      if not more then
        leave_ring(lane)
        if single then c('HDEL', p .. SINGLE_LANES, whose) end
      end
    end
  end
end

local function top(q, lowest, highest)
  return tonumber(c('ZRANGE', q.p .. PRIORITIES, -highest, -lowest, 'BYSCORE', 'LIMIT', 0, 1)[1] or nil)
end

local function wanted(pass, q)
  if #pass[4] == 0 then return true end
  for _, number in ipairs(pass[4]) do if number == q.number then return true end end
  return false
end

-- Of all that this pass is about, the highest priority first. Answers whether more may have come into the rings meanwhile.
local function draw_pass(pass)
  if only then
    local any = some_due and open_due()
    local since, till = pause_of(c('HGET', g .. PAUSED_TENANTS, only), now)
    if till then opens = min(opens or till, till) end
    if since then return false end
    local candidates = {}
    for _, q in ipairs(queues) do
      if wanted(pass, q) then
        for _, priority in ipairs(c('ZRANGE', q.p .. PRIORITIES, -pass[2], -pass[1], 'BYSCORE', 'LIMIT', 0, 300)) do
          candidates[#candidates + 1] = {q, priority}
        end
      end
    end
    table.sort(candidates, function(a, b) return tonumber(a[2]) > tonumber(b[2]) end)
    for _, candidate in ipairs(candidates) do
      if left <= 0 or stopped or budget <= 0 then break end
      draw_tenant(candidate[1], candidate[2])
    end
    return any
  end
  while left > 0 and not stopped and budget > 0 do
    -- Before every priority: a lane that was let go may be parked again, and makes room for the next one under its key.
    local any = some_due and open_due()
    local best, highest
    for _, q in ipairs(queues) do
      if wanted(pass, q) then
        local priority = top(q, pass[1], pass[2])
        if priority and (not highest or priority > highest) then best, highest = q, priority end
      end
    end
    if best then draw_priority(best, highest) elseif not any then break end
  end
  return false
end
