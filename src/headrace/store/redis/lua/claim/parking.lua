-- Claim, third part: what may not go now, and what may again.

local touched, listed_keys, asked = {}, {}, {}
for _, q in ipairs(queues) do asked[q.p] = true end

-- A lane, or a tenant's whole place in a ring, leaves the ring until the key opens. It costs claims nothing there.
local function park(q, entry, key, opening)
  budget = budget - 1
  -- The higher priority first, then the lane that came first: a priority is 11 bits, and milliseconds have room in the other 42.
  local priority = tonumber(match(entry, '^(-?%d+)|'))
  c('ZADD', g .. PARKED_UNDER .. key, format('%.0f', (1000 - priority) * 4398046511104 + floor(now / 1000)), q.p .. entry)
  if not listed_keys[key] then c('SADD', g .. PARKING_KEYS, key) listed_keys[key] = true end
  if not q.listed_here then c('SADD', g .. PARKING_QUEUES, q.p) q.listed_here = true end
  c('HSET', q.p .. PARKED, entry, key)
  -- The least: others may need fewer units; a key that is being tried stays so.
  if opening and opening < math.huge then c('ZADD', g .. OPENINGS, 'LT', format('%.0f', opening), key) end
end

-- The paused tenant's place in the ring is given up.
local function park_paused(q, entry, tenant, till)
  park(q, entry, '\1' .. tenant, till)
  if byte(entry, #entry) <= 2 then q.left[#q.left + 1] = whose_of(entry) end
end

-- Lanes that were alone in their tenants' places have left them.
local function forget_singles(q)
  if #q.left > 0 then each('HDEL', q.p .. SINGLE_LANES, q.left) q.left = {} end
end

-- Up to so many of what is parked under a key is to go back; `by` collects it by queue. Answers how many, and how many of
-- them are of the queues that this claim is for.
local function unpark(key, most, by)
  local parked, ours = c('ZPOPMIN', g .. PARKED_UNDER .. key, most), 0
  for i = 1, #parked, 2 do
    local p, entry = match(parked[i], '^(.-}:)(.*)$')
    if asked[p] then ours = ours + 1 end
    local back = by[p]
    if not back then back = {all = {}, lanes = {}, places = {}} by[p] = back end
    local kind = byte(entry, #entry) == 42 and back.places or back.lanes
    kind[#kind + 1] = entry
    back.all[#back.all + 1] = entry
  end
  if #parked / 2 < most or c('EXISTS', g .. PARKED_UNDER .. key) == 0 then
    c('SREM', g .. PARKING_KEYS, key)
    listed_keys[key] = nil
  end
  return #parked / 2, ours
end

-- The same until so many of this claim's own have gone: those of other queues, which may have a higher priority, must not
-- keep them parked while this claim takes what has a lower one.
local function unpark_own(key, most, tries, by)
  local gone, own = 0, 0
  while own < most and gone < tries and budget > gone do
    local some, ours = unpark(key, min(most - own, tries - gone), by)
    if some == 0 then break end
    gone, own = gone + some, own + ours
  end
  return gone
end

local function listed(key) return c('SISMEMBER', g .. PARKING_KEYS, key) == 1 end

-- Into the rings with them.
local function let_go(by)
  for _, q in ipairs(queues) do
    forget_singles(q)
    q.listed_here, q.subrings = nil, nil
  end
  for p, back in pairs(by) do
    each('HDEL', p .. PARKED, back.all)
    activate(p, back.lanes)
    into_rings(p, back.places)
    wake(p)
    if c('EXISTS', p .. PARKED) == 0 then c('SREM', g .. PARKING_QUEUES, p) end
  end
end

-- How many lanes a key lets go now, by its rule, and when it opens if it does not and will.
local function openness(key)
  if byte(key) == 1 then
    local since, till = pause_of(c('HGET', g .. PAUSED_TENANTS, sub(key, 2)), now)
    if since then return 0, till end
    return 200
  end
  if byte(key) == byte(NEVER) then return 200 end  -- another rule
  local name = match(key, '^([^:]*)')
  local keys = {{name, key, 1}}
  look_at_limits(g, keys, now)
  local free, _, at = room(keys, now)
  return min(free, 200), at
end

-- Opens keys whose time has come, or whose units were given back. Returns whether any lane was freed.
local function open_due()
  local due = c('ZRANGEBYSCORE', g .. OPENINGS, '-inf', format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, 50)
  local any, by = false, {}
  for i = 1, #due, 2 do
    local key, tries = due[i], -tonumber(due[i + 1])
    if tries <= 0 then tries = c('ZCARD', g .. PARKED_UNDER .. key) end
    local most, at = openness(key)
    local gone = most > 0 and unpark_own(key, most, tries, by) or 0
    budget = budget - 1 - gone
    any = any or gone > 0
    if at and at < math.huge then
      c('ZADD', g .. OPENINGS, format('%.0f', at), key)
    elseif gone > 0 and tries > gone then
      c('ZADD', g .. OPENINGS, gone - tries, key)
    elseif limits[key] and limits[key].units and limits[key].rule.rate and listed(key) then
      -- Tried already, and parked again: those need more units than there were. One more may be enough.
      c('ZADD', g .. OPENINGS, format('%.0f', now + ceil(1000000 / limits[key].rule.rate)), key)
    else
      c('ZREM', g .. OPENINGS, key)
    end
    if budget <= 0 then break end
  end
  if any then let_go(by) end
  return any
end

local first_due = c('ZRANGE', g .. OPENINGS, 0, 0, 'WITHSCORES')
local some_due = first_due[2] and tonumber(first_due[2]) <= now
-- Open already, though it should not be for long: the clock was set back.
local early = first_due[2] and tonumber(first_due[2]) - now > AHEAD and openness(first_due[1]) > 0
some_due = some_due or early

-- Jobs of this lane have begun: they hold units, and have drawn from buckets.
local function hold(q, keys, count)
  q.limited = true
  for i = 1, #keys do
    local limit = limits[keys[i][2]]
    limit.held = limit.held + count * keys[i][3]
    if limit.units then limit.units = limit.units - count * keys[i][3] end
    touched[keys[i][2]] = limit
  end
end

local function write_limits()
  local held, buckets = {}, {}
  for key, limit in pairs(touched) do
    held[#held + 1] = key
    held[#held + 1] = format('%.0f', limit.held)
    if limit.units then
      buckets[#buckets + 1] = key
      buckets[#buckets + 1] = pack('>dd', limit.units, now)
    end
  end
  if #held > 0 then each('HSET', g .. HELD, held) end
  if #buckets > 0 then each('HSET', g .. BUCKETS, buckets) end
end

-- Up to `want` from one lane, as far as its limits leave room. Answers how many, and whether it stays in its ring.
local function draw(q, lane, head, want)
  local keys = keys_of(lane)
  if not keys then return draw_any(q, lane, head, want) end
  look_at_limits(g, keys, now)
  local free, key, at = room(keys, now)
  if free <= 0 then
    park(q, lane, key, at)
    return 0, false
  end
  budget = budget - #keys
  local got, more = draw_any(q, lane, head, min(want, free))
  if got > 0 then hold(q, keys, got) end
  if more and not stopped then
    free, key, at = room(keys, now)
    if free <= 0 then
      park(q, lane, key, at)
      more = false
    end
  end
  return got, more
end
