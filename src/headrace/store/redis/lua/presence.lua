-- Note a worker, and whether it does the upkeep of its group.
-- KEYS: 1 the workers, 2 the places of its group, 3 the orders to workers, which a cluster keeps elsewhere.
-- ARGV: 1 id, 2 record, 3 clock, 4 ttl µs, 5 places, 0: it does none, 6 its name among the orders
-- Answer: {1 if it has a place, the time, the record of its order or ''}
c('HDEL', KEYS[1], ARGV[1])  -- as in settle: the workers of a full server are listed
c('HSET', KEYS[1], ARGV[1], ARGV[2])
local places, now = tonumber(ARGV[5]), clock(ARGV[3])
local time = format('%.0f', now)
local order = KEYS[3] and c('HGET', KEYS[3], ARGV[6]) or ''
if places == 0 then return {0, time, order} end
c('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if not c('ZSCORE', KEYS[2], ARGV[1]) and c('ZCARD', KEYS[2]) >= places then return {0, time, order} end
c('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
c('PEXPIRE', KEYS[2], math.ceil(ARGV[4] / 1000) + 60000)
return {1, time, order}
