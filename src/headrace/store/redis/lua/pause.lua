-- Hold a queue, a tenant or a task back, or let it go.
-- KEYS: the queue, or the home of limits.  ARGV: 1 clock, 2 queue, tenant or task, 3 name, 4 until µs, or -1: until it is
-- resumed, or '': resume it, 5 by whom.
-- Answer: {'ok'}, or on a cluster {'unlisted', mark}, if the queue is not on the list (see leaving.py).
local p, now, kind, name = KEYS[1], clock(ARGV[1]), ARGV[2], ARGV[3]
if kind == 'queue' then
  local gone = unlisted(p)
  if gone then return {'unlisted', gone} end
end
local hash = kind == 'tenant' and p .. PAUSED_TENANTS or p .. PAUSED_TASKS
local known
if kind == 'queue' then known = c('GET', p .. PAUSED) else known = c('HGET', hash, name) end
local resumed = ARGV[4] == ''
c('DEL', p)  -- as in settle: an operator must be able to hold jobs back on a full server
if not resumed then
  -- Of two pauses the first counts, by whom and since when; the last one says until when.
  local since, _, by = pause_of(known, now)
  local record = pack('>dd', since or now, tonumber(ARGV[4])) .. (since and by or ARGV[5])
  if kind == 'queue' then
    c('SET', p .. PAUSED, record)
    list(p)
    if HOME then c('HSET', HOME .. PAUSED_QUEUES, name, record) end
  else
    c('HSET', hash, name, record)
  end
elseif kind == 'queue' then
  c('DEL', p .. PAUSED)
  if HOME then c('HDEL', HOME .. PAUSED_QUEUES, name) end
  wake(p)
else
  c('HDEL', hash, name)
end
if kind == 'tenant' then
  c('HINCRBY', p .. COUNTERS, 'version', 1)
  -- The time at which its lanes wake may be another now: look.
  may_open(p, {'\1' .. name})
end
return {'ok'}
