-- Note a worker, whether it does the upkeep of its group, and if so whether its queues have something to claim.
-- KEYS: 1 the workers, 2 the places of its group; then on one server 3 the orders to workers, 4 the home of limits, 5… the
--   prefixes of its queues, all of them or none. A cluster keeps these elsewhere.
-- ARGV: 1 id, 2 record, 3 clock, 4 ttl µs, 5 places, 0: it does none, 6 its name among the orders
-- Answer: {1 if it has a place, the time, the record of its order or '', 1 or 0: something to claim, '': it was not asked}
if type(redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])) == 'table' then
  c('HDEL', KEYS[1], ARGV[1])  -- as in settle: the workers of a full server are listed
  c('HSET', KEYS[1], ARGV[1], ARGV[2])
end
local places, now = tonumber(ARGV[5]), clock(ARGV[3])
local time = format('%.0f', now)

-- An idle server has neither orders nor jobs, which one command tells.
local looked = {}
for k = 3, #KEYS do
  looked[k - 2] = k == 3 and KEYS[3] or k == 4 and KEYS[4] .. OPENINGS or KEYS[k] .. PRIORITIES
end
local some = #looked > 0 and c('EXISTS', unpack(looked)) > 0
local order = some and c('HGET', KEYS[3], ARGV[6]) or ''

-- A place is kept as long as it has not run out. The key is gone a day after the last worker came to the group; one that is
-- still there then comes again.
local own = places > 0 and c('ZSCORE', KEYS[2], ARGV[1])
if not own or tonumber(own) <= now then
  if places == 0 or c('ZCOUNT', KEYS[2], '(' .. time, '+inf') >= places then return {0, time, order, ''} end
  c('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  own = nil
end
c('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
if not own then c('PEXPIRE', KEYS[2], 86400000) end

if #KEYS < 5 then return {1, time, order, ''} end
for k = 5, some and #KEYS or 4 do
  if claimable(KEYS[k], KEYS[4], now) then return {1, time, order, 1} end
end
return {1, time, order, 0}
