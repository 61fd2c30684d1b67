-- Limits: the keys that a lane's name ends with, their rules, the units that leases hold, the buckets of rates.
local DUST = 1e-6  -- of a unit, that rounding may have lost
local AHEAD = 10000000  -- µs: a bucket drawn from so much later is from before the clock was set back, and counts as full
local NEVER = '\2'  -- begins the name under which lanes are parked that need more than a key can ever have

-- A limit key of a lane as the limit's name, whose units they are, how many a job needs: as in lane.py, units that are not
-- 1 to 1,000,000 count as 1.
local function split_limit(key)
  local name, own = match(key, '^([^:]*)(.*)$')
  local base, cost = match(name, '^([^@]*)@(.*)$')
  if base then
    local units = match(cost, '^[1-9]%d*$') and #cost <= 7 and tonumber(cost) or 1
    return base, base .. own, units <= 1000000 and units or 1
  end
  return name, key, 1
end

local parsed = {}

-- What a job of this lane needs: {name, key, units}…; nil: it has no limits.
local function keys_of(lane)
  if byte(lane, #lane) ~= 1 then return nil end
  local keys = parsed[lane]
  if keys then return keys end
  keys = {}
  local by = {}
  for text in string.gmatch(sub(lane, string.find(lane, '\1', 1, true) + 1), '([^\1]+)\1') do
    local name, key, units = split_limit(text)
    local same = by[key]
    if same then
      same[3] = same[3] + units
    else
      same = {name, key, units}
      by[key] = same
      keys[#keys + 1] = same
    end
  end
  parsed[lane] = keys
  return keys
end

-- A rule as it is stored: version, concurrency, rate, burst and closed until, each -1 for none, and the owner's state.
local function rule_of(record)
  if not record then return nil end
  local _, concurrency, rate, burst, closed = read('>ddddd', record)
  return {concurrency = concurrency >= 0 and concurrency or nil, rate = rate > 0 and rate or nil, burst = burst,
    closed = closed, stopped = rate == 0}
end

local limits = {}  -- by key, as far as this call has looked: rule, held, units in the bucket

local function look_at_limits(g, keys, now)
  local missing, wanted = {}, {}
  for i = 1, #keys do
    local key = keys[i][2]
    if not limits[key] then
      limits[key] = {}
      missing[#missing + 1] = keys[i]
      wanted[#wanted + 1] = key
    end
  end
  if #missing == 0 then return end
  local names = {}
  for i = 1, #missing do names[i] = missing[i][1] end
  local ruled = c('EXISTS', g .. RULES) == 1
  for a = 1, #missing, 2000 do
    local z = min(#missing, a + 1999)
    local held = c('HMGET', g .. HELD, unpack(wanted, a, z))
    local own = ruled and c('HMGET', g .. RULES, unpack(wanted, a, z)) or {}
    local common = ruled and c('HMGET', g .. RULES, unpack(names, a, z)) or {}
    for i = a, z do
      local limit = limits[wanted[i]]
      limit.held = tonumber(held[i - a + 1] or 0)
      limit.rule = rule_of(own[i - a + 1] or common[i - a + 1])
      local rule = limit.rule
      if rule and (rule.rate or rule.stopped) then
        local bucket = c('HGET', g .. BUCKETS, wanted[i])
        limit.units = rule.burst
        if bucket then
          local units, at = read('>dd', bucket)
          if at - now <= AHEAD then limit.units = min(rule.burst, units + (rule.rate or 0) * (now - at) / 1000000) end
        end
      end
    end
  end
end

-- When there will be so many units in the bucket of a rate.
local function refilled(limit, units, now)
  if not limit.rule.rate then return math.huge end
  return now + ceil((units - limit.units) / limit.rule.rate * 1000000)
end

-- How many jobs may go; if none, the key to wait for, and when it opens if that is only a matter of time.
local function room(keys, now)
  local most, full, slow, opens, never = math.huge, nil, nil, nil, nil
  for i = 1, #keys do
    local key, units = keys[i][2], keys[i][3]
    local limit = limits[key]
    local rule = limit.rule
    if rule and rule.closed > now then
      most = 0
      if not opens or rule.closed > opens then slow, opens = key, rule.closed end
    elseif rule and units > 0 then
      if rule.closed >= 0 then
        -- Half open: one job at a time, whatever it costs.
        most = min(most, limit.held > 0 and 0 or 1)
        if limit.held > 0 then full = key end
      end
      if rule.concurrency then
        local free = floor((rule.concurrency - limit.held) / units)
        most = min(most, free)
        if free <= 0 then full = key end
        if units > rule.concurrency then never = key end
      end
      if limit.units then
        local free = floor((limit.units + DUST) / units)
        most = min(most, free)
        if free <= 0 and units - rule.burst > DUST then
          never = key
        elseif free <= 0 then
          local at = refilled(limit, units, now)
          if not opens or at > opens then slow, opens = key, at end
        end
      end
    end
  end
  if most > 0 then return most end
  if never then return 0, NEVER .. never end
  if full then return 0, full end
  return 0, slow, opens
end

-- What is parked under these keys may be let go: claims try each lane once, as far as the keys then leave room.
-- The score in `#o` is when a key opens, or minus the number of lanes still to be tried.
local function may_open(g, keys)
  local scores = {}
  for i = 1, #keys do
    local parked = c('ZCARD', g .. PARKED_UNDER .. keys[i])
    if parked > 0 then
      scores[#scores + 1] = -parked
      scores[#scores + 1] = keys[i]
    end
  end
  if #scores == 0 then return end
  each('ZADD', g .. OPENINGS, scores)
  for _, p in ipairs(c('SMEMBERS', g .. PARKING_QUEUES)) do wake(p) end
end
