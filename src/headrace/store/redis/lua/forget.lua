-- Forget a queue that has no jobs. Its counters are kept aside, so its totals and its places go on where they were.
-- On one server this script does all of it. On a cluster it is the second of five steps (see leaving.py): it marks the queue, and
-- an enqueue that meets the mark stores nothing.
-- ARGV: 1 clock, 2 µs to remember tokens, 3 on a cluster the mark
-- Answer: 0: it has jobs, or is needed otherwise; 1: it is gone; on a cluster {field, counter…}
local p, now = KEYS[1], clock(ARGV[1])
if c('EXISTS', p .. BATCHES, p .. SCHEDULED, p .. LEASES, p .. PRIORITIES, p .. PARKED) > 0 then return 0 end
if not HOME and c('EXISTS', p .. LOCKS, p .. BUCKETS, p .. CHANGED, p .. OWING) > 0 then return 0 end
if not HOME and tonumber(c('HGET', p .. COUNTERS, 'gates') or 0) > 0 then return 0 end
if pause_of(c('GET', p .. PAUSED), now) then return 0 end
c('DEL', p)  -- as in settle
forget_tokens(p, now, tonumber(ARGV[2]))
if c('EXISTS', p .. SPENT_TOKENS, p .. OLDER_TOKENS) > 0 then return 0 end
local counters = c('HGETALL', p .. COUNTERS)
if not HOME then
  local kept = {}
  for i = 1, #counters, 2 do
    if counters[i] ~= 'g' and counters[i] ~= 'rules' then
      kept[#kept + 1] = counters[i]
      kept[#kept + 1] = counters[i + 1]
    end
  end
  c('HSET', p .. COUNTERS, 'g', ARGV[3])
  return kept
end
local prefix, name = match(p, '^(.*):{(.*)}:$')
if #counters > 0 then c('HSET', HOME .. FORGOTTEN, name, cmsgpack.pack(counters)) end
drop(p)
c('SREM', prefix .. ':queues', name)
c('HDEL', HOME .. PAUSED_QUEUES, name)
c('ZREM', HOME .. DUE_QUEUES, p)
c('ZREM', HOME .. EXPIRING_QUEUES, p)
return 1
