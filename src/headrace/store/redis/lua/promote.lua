-- Move what is due from scheduled to ready, and go on with what follows from the ends of jobs.
-- KEYS: a queue of a cluster, or on one server the home of limits: then of all queues, those first that have waited longest.
-- ARGV: 1 clock, 2 at most.
-- Answer: {moved, µs until the next is due, or -1: none is scheduled, µs until leases may run out, or -1: there are none, 1: another
--   queue of a cluster is to be told something}
local now, left = clock(ARGV[1]), tonumber(ARGV[2])
local moved = 0
moment = now

-- Answers when the next job of the queue is due; nil: none is scheduled.
local function promote(p)
  local ids = c('ZRANGEBYSCORE', p .. SCHEDULED, '-inf', now, 'LIMIT', 0, left)
  if #ids > 0 then
    local records, back = c('HMGET', p .. LOOSE, unpack(ids)), {}
    for i = 1, #ids do
      local seq, lane = opened(records[i])
      back[i] = {lane, seq, ids[i]}
    end
    c('ZREM', p .. SCHEDULED, unpack(ids))
    come_back(p, back)
    moved, left = moved + #ids, left - #ids
  end
  local following = c('ZRANGE', p .. SCHEDULED, 0, 0, 'WITHSCORES')[2]
  local until_then = c('ZRANGE', p .. SUSPENDED, 0, 0, 'WITHSCORES')[2]
  if until_then and tonumber(until_then) <= now and left > 0 then
    local ids = c('ZRANGEBYSCORE', p .. SUSPENDED, '-inf', now, 'LIMIT', 0, left)
    for i = 1, #ids do
      local waits, record = blocked_of(c('HGET', p .. BLOCKED, ids[i]))
      unblock(p, ids[i], waits)
      let_go(p, ids[i], waits, record, opened(record))
    end
    moved, left = moved + #ids, left - #ids
    until_then = c('ZRANGE', p .. SUSPENDED, 0, 0, 'WITHSCORES')[2]
  end
  if until_then and (not following or tonumber(until_then) < tonumber(following)) then following = until_then end
  return following
end

-- The same for what follows from the ends of jobs: nil, or 0 if there is more.
local function go_on(g)
  local entries = left > 0 and take_changed(g, left) or 0
  if entries == 0 then return left <= 0 and c('EXISTS', g .. CHANGED) == 1 and '0' or nil end
  effort = left
  finish_links(g)
  moved, left = moved + max(1, followed), max(0, left - max(1, followed))
  return c('EXISTS', g .. CHANGED) == 1 and '0' or nil
end

local following, broken
if HOME then
  -- The index says a time that none of a queue's jobs is due before: it is put right where it comes first.
  for _ = 1, 100 do
    local p, at = unpack(c('ZRANGE', HOME .. DUE_QUEUES, 0, 0, 'WITHSCORES'))
    following = at
    if not p or left <= 0 then break end
    local well, real = pcall(p == HOME and go_on or promote, p)
    if not well then
      -- A queue whose keys are damaged comes again in a second, and keeps no other from being promoted.
      broken, real = real, format('%.0f', now + 1000000)
    end
    following = real
    if following == at then break end
    c('DEL', HOME)  -- as in settle
    if following then c('ZADD', HOME .. DUE_QUEUES, following, p) else c('ZREM', HOME .. DUE_QUEUES, p) end
    following = c('ZRANGE', HOME .. DUE_QUEUES, 0, 0, 'WITHSCORES')[2]
  end
else
  following = promote(KEYS[1])
  following = go_on(KEYS[1]) or following
end
local owes = finish_links(home(KEYS[1]))
if broken and moved == 0 then return redis.error_reply(type(broken) == 'table' and broken.err or broken) end
local first
if HOME then
  first = c('ZRANGE', HOME .. EXPIRING_QUEUES, 0, 0, 'WITHSCORES')[2]
else
  first = c('ZRANGE', KEYS[1] .. LEASES, 0, 0, 'WITHSCORES')[2]
end
local function left_until(at) return at and format('%.0f', max(0, at - now)) or '-1' end
return {moved, left_until(following), left_until(first), owes and 1 or 0}
