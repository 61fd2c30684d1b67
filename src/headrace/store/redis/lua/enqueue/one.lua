-- Store one job that is ready now and has no key, no lock and no limit keys, on one server: what most calls enqueue.
-- The script has neither the head of the others nor a function, because making them costs more than these commands do.
-- KEYS: 1 the prefix of the queue, 2 its counters. ARGV: 1 lane, 2 element.
-- Answer: 1: the job is stored, now or before; 0: nothing has changed, and the general script must store it.
local c, p, counters, lane, el = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local prefix = string.sub(el, 1, 14)
if c('ZLEXCOUNT', p .. BATCHES, '[' .. prefix, '(' .. prefix .. '\255') > 0 then return 1 end
local head = c('HGET', p .. FIRST_PLACES, lane)
-- Lanes with limit keys share the place of their tenant in the ring, which the general script knows how to find.
-- In most queues no job has come back either, which one command tells, too.
local special = not head and c('EXISTS', p .. RINGED_TENANTS, p .. SINGLE_LANES, p .. RETURNED_LANES) > 0
if special and c('EXISTS', p .. RINGED_TENANTS, p .. SINGLE_LANES) > 0 then return 0 end
local total = c('HINCRBY', counters, 'e', 1)
if total == 1 then
  -- The queue is new, or was forgotten: the general script puts it on the list.
  c('HDEL', counters, 'e')
  return 0
end
if not head then
  -- The list begins anew: its places follow on all that this queue ever gave out.
  head = total - 1
  c('HSET', p .. FIRST_PLACES, lane, head)
  if not special or c('SISMEMBER', p .. RETURNED_LANES, lane) == 0 then
    local priority = string.match(lane, '^-?%d+')
    if c('RPUSH', p .. RING .. priority, lane) == 1 then c('ZADD', p .. PRIORITIES, -priority, priority) end
  end
end
local length = c('RPUSH', p .. READY .. lane, el)
if #el >= 16384 then c('SADD', p .. LARGE_LANES, lane) end
-- What the index says of a batch is an array of five: one job, its lane, from, to, and its place.
c('ZADD', p .. BATCHES, 0, prefix .. '\149\1' .. cmsgpack.pack(lane, 0, 0, head + length - 1))
-- The marker of the only ready job is rarely there already.
if c('HINCRBY', counters, 'r', 1) == 1 then
  if c('RPUSH', p .. MARKER, 1) > 1 then c('LPOP', p .. MARKER) end
elseif c('EXISTS', p .. MARKER) == 0 then
  c('RPUSH', p .. MARKER, 1)
end
return 1
