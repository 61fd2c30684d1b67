-- On one server: the queues that have leases which have run out.
-- KEYS: the home of limits.  ARGV: 1 clock, 2 at most.  Answer: prefixes of queues, those first where it was longest ago.
local now, most = clock(ARGV[1]), tonumber(ARGV[2])
local prefixes = {}
-- The index says a time that none of a queue's leases runs out before; renewed ones run out later, settled ones never.
for _ = 1, 200 do
  local p, at = unpack(c('ZRANGEBYSCORE', HOME .. EXPIRING_QUEUES, '-inf', format('%.0f', now), 'WITHSCORES', 'LIMIT', #prefixes, 1))
  if not p or #prefixes >= most then break end
  -- A queue whose keys are damaged is the caller's to hear of, and keeps no other from being looked at.
  local leases = redis.pcall('ZRANGE', p .. LEASES, 0, 0, 'WITHSCORES')
  local first = leases[2]
  if leases.err then
    prefixes[#prefixes + 1] = p
  elseif not first then
    c('ZREM', HOME .. EXPIRING_QUEUES, p)
  elseif tonumber(first) > now then
    c('DEL', HOME)  -- as in settle
    c('ZADD', HOME .. EXPIRING_QUEUES, first, p)
  else
    prefixes[#prefixes + 1] = p
  end
end
return prefixes
