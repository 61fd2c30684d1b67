-- On one server: the queues that have leases which have run out.
-- KEYS: the home of limits.  ARGV: 1 clock, 2 at most.  Answer: prefixes of queues, those first where it was longest ago.
local now, most = clock(ARGV[1]), tonumber(ARGV[2])
local found = {}
-- The index says a time that none of a queue's leases runs out before; renewed ones run out later, settled ones never.
for _ = 1, 200 do
  local p, at = unpack(c('ZRANGEBYSCORE', HOME .. '#z', '-inf', format('%.0f', now), 'WITHSCORES', 'LIMIT', #found, 1))
  if not p or #found >= most then break end
  local first = c('ZRANGE', p .. 'Z', 0, 0, 'WITHSCORES')[2]
  if not first then
    c('ZREM', HOME .. '#z', p)
  elseif tonumber(first) > now then
    c('DEL', HOME)  -- as in settle
    c('ZADD', HOME .. '#z', first, p)
  else
    found[#found + 1] = p
  end
end
return found
