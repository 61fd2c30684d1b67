-- What a waiting job waits behind. Reads only.
-- ARGV: 1 clock, 2 id, 3 each count ends here
-- Answer: {before it in its lane, of higher priority, 1: a suspect, the pause of its queue or '', of its tenant or '',
--   limits that block it: key, concurrency or -1, held, when it opens or -1…}, or nothing.
local p, now, id, limit = KEYS[1], clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local g = home(p)
local LANES = 1000  -- to look into for higher priorities

-- Jobs among the first n elements of a lane's list. Cancelled ones are found without reading the others.
local function jobs_in(lane, n)
  n = min(n, 4 * limit)
  if n <= 0 then return 0 end
  if c('HEXISTS', p .. HOLES, lane) == 0 then return n end
  local gaps = c('LPOS', p .. READY .. lane, '', 'COUNT', 0, 'MAXLEN', n)
  return n - #gaps
end

local how, what, lane, seq, index = where(p, id)
local _
if how ~= 's' and how ~= 'b' and how ~= 'w' then return {} end
local function paused(record) return pause_of(record, now) and record or '' end
local function pauses(lane) return paused(c('GET', p .. PAUSED)), paused(c('HGET', g .. PAUSED_TENANTS, tenant_of(lane))) end
if how == 's' then
  local _, whose, _, el = opened(what)
  return {0, 0, byte(el, 25) % 2, pauses(whose)}
end

local before, el = 0, what
if how == 'w' then
  before = jobs_in(lane, index) + c('ZCOUNT', p .. RETURNED .. lane, '-inf', '(' .. format('%.17g', seq))
else
  seq, lane, _, el = opened(what)
  local head = tonumber(c('HGET', p .. FIRST_PLACES, lane) or nil)
  if head then before = jobs_in(lane, min(floor(seq) - head + 1, c('LLEN', p .. READY .. lane))) end
  before = before + c('ZRANK', p .. RETURNED .. lane, id)
end

local own = tonumber(match(lane, '^(-?%d+)|'))
local higher, looks = 0, 0
local function look(other)
  looks = looks + 1
  higher = higher + c('LLEN', p .. READY .. other) - (c('HGET', p .. HOLES, other) or 0) + c('ZCARD', p .. RETURNED .. other)
end
-- The lanes of a tenant's place in a ring, or of a place that is parked because the tenant is paused.
local function look_into(entry)
  if byte(entry, #entry) ~= 42 then return look(entry) end
  for _, other in ipairs(c('LRANGE', p .. TENANT_RING .. sub(entry, 1, -3), 0, LANES - looks - 1)) do look(other) end
end
-- Every entry of a ring has a job or more, so those that are not looked into count as one each.
for _, priority in ipairs(c('ZRANGE', p .. PRIORITIES, 0, -1)) do
  if tonumber(priority) <= own or higher >= limit then break end
  local ring, counted = p .. RING .. priority, 0
  for _, entry in ipairs(looks < LANES and c('LRANGE', ring, 0, LANES - looks - 1) or {}) do
    if higher >= limit or looks >= LANES then break end
    counted = counted + 1
    look_into(entry)
  end
  higher = higher + c('LLEN', ring) - counted
end
for _, entry in ipairs(higher < limit and looks < LANES and c('HRANDFIELD', p .. PARKED, LANES - looks) or {}) do
  if looks >= LANES then break end
  if tonumber(match(entry, '^(-?%d+)|')) > own then look_into(entry) end
end

local queue_paused, tenant_paused = pauses(lane)
local answer = {min(before, limit), min(higher, limit), byte(el, 25) % 2, queue_paused, tenant_paused}
local keys = keys_of(lane) or {}
look_at_limits(g, keys, now)
for _, own_key in ipairs(keys) do
  local _, key, units = unpack(own_key)
  local limit_now = limits[key]
  local rule = limit_now.rule
  local function blocked(concurrency, at, never)
    local held = concurrency >= 0 and limit_now.held or 0
    local words = {key, format('%.0f', concurrency), format('%.0f', held), format('%.0f', at), never and '1' or '0'}
    for _, word in ipairs(words) do
      answer[#answer + 1] = word
    end
  end
  if rule and rule.closed > now then
    blocked(-1, rule.closed)
  elseif rule then
    if rule.closed >= 0 and limit_now.held > 0 then
      blocked(units, -1)
    elseif rule.concurrency and limit_now.held + units > rule.concurrency then
      blocked(rule.concurrency, -1, units > rule.concurrency)
    end
    if limit_now.units and units - limit_now.units > DUST then
      local at, never = refilled(limit_now, units, now), units - rule.burst > DUST
      blocked(-1, not never and at < math.huge and at or -1, never)
    end
  end
end
return answer
