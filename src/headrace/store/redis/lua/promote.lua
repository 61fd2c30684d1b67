-- Move what is due from scheduled to ready.
-- KEYS: a queue of a cluster, or on one server the home of limits: then of all queues, those first that have waited longest.
-- ARGV: 1 clock, 2 at most.
-- Answer: {moved, µs until the next is due, or -1: none is scheduled, µs until leases may run out, or -1: there are none}
local now, left = clock(ARGV[1]), tonumber(ARGV[2])
local moved = 0

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
  return c('ZRANGE', p .. SCHEDULED, 0, 0, 'WITHSCORES')[2]
end

local following, broken
if HOME then
  -- The index says a time that none of a queue's jobs is due before: it is put right where it comes first.
  for _ = 1, 100 do
    local p, at = unpack(c('ZRANGE', HOME .. DUE_QUEUES, 0, 0, 'WITHSCORES'))
    following = at
    if not p or left <= 0 then break end
    local well, real = pcall(promote, p)
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
end
if broken and moved == 0 then return redis.error_reply(type(broken) == 'table' and broken.err or broken) end
local first
if HOME then
  first = c('ZRANGE', HOME .. EXPIRING_QUEUES, 0, 0, 'WITHSCORES')[2]
else
  first = c('ZRANGE', KEYS[1] .. LEASES, 0, 0, 'WITHSCORES')[2]
end
local function left_until(at) return at and format('%.0f', max(0, at - now)) or '-1' end
return {moved, left_until(following), left_until(first)}
