-- Drop finished jobs past their time.
-- ARGV: 1 clock, 2 µs to keep done and cancelled ones, 3 µs to keep dead ones, 4 at most, 5 µs to remember tokens
-- Answer: {dropped, 1: there is more}
local p, limit, dropped = KEYS[1], tonumber(ARGV[4]), 0
local effort = 600  -- roughly tens of µs: a lease of a thousand goes whole, of small ones fewer at a time
local now = clock(ARGV[1])
local over, over_dead = now - ARGV[2], now - ARGV[3]

local OVER = pack('>d', 0)

local reported = c('EXISTS', p .. 'j') == 1

-- Tokens that were settled to the end are remembered for so long, and for twice as long at most.
if now - tonumber(c('HGET', p .. 'd', 'y') or 0) >= tonumber(ARGV[5]) and c('EXISTS', p .. 'y', p .. 'y2') > 0 then
  if c('EXISTS', p .. 'y') == 1 then c('RENAME', p .. 'y', p .. 'y2') else c('DEL', p .. 'y2') end
  c('HSET', p .. 'd', 'y', format('%.0f', now))
end

for _, prefix in ipairs(c('SPOP', p .. 'nx', 200)) do forget(p, prefix, 0) end

for set, horizon in pairs({kd = over_dead, kc = over}) do
  local ids = c('ZRANGEBYSCORE', p .. set, '-inf', horizon, 'LIMIT', 0, min(100, limit - dropped))
  for i = 1, #ids do
    unended(p, ids[i])
    c('HDEL', p .. 'e', ids[i])
    if reported then c('HDEL', p .. 'j', ids[i]) end
    forget(p, sub(ids[i], 1, 14), 1)
  end
  dropped = dropped + #ids
  effort = effort - 3 * #ids
end

-- Results whose time is over, though their jobs' is not: what stays of each is that there was one.
for _, no in ipairs(c('ZRANGEBYSCORE', p .. 'G', '-inf', format('%.0f', now), 'LIMIT', 0, 5)) do
  local stubs = {}
  for _, index in ipairs(c('HKEYS', p .. 'g:' .. no)) do
    stubs[#stubs + 1] = index
    stubs[#stubs + 1] = OVER
  end
  each('HSET', p .. 'g:' .. no, stubs)
  c('ZREM', p .. 'G', no)
  effort = effort - 4 - #stubs / 20
end

-- A lease's list is the history of its jobs, from the first one done: it goes when the last one's time is over.
local set = 'F'
while dropped < limit and effort > 0 do
  local found = c('ZRANGEBYSCORE', p .. set, '-inf', over, 'WITHSCORES', 'LIMIT', 0, 1)
  if not found[1] and set == 'F' then
    set = 'H'
    found = c('ZRANGEBYSCORE', p .. set, '-inf', over, 'WITHSCORES', 'LIMIT', 0, 1)
  end
  local no = found[1]
  if not no then break end
  local horizon, whole = over, tonumber(found[2])
  local live = c('ZSCORE', p .. 'Z', no)
  local log = c('GET', p .. 's:' .. no)
  local times = settled_times(log)
  local list = p .. 'l:' .. no
  local els = c('LRANGE', list, 1, -1)
  local batches, kept, last, next_due = {}, 0, 0, nil
  effort = effort - 4 - #els / 2
  for i = 1, #els do
    local el = els[i]
    effort = effort - #el / 4000
    local time = times[i - 1] or (not live and whole) or nil
    if #el > 0 and time then
      if time <= horizon and dropped < limit then
        local id, prefix = sub(el, 1, 16), sub(el, 1, 14)
        batches[prefix] = (batches[prefix] or 0) + 1
        if sub(el, 17, 22) ~= '\0\0\0\0\0\0' then c('HDEL', p .. 'e', id) end
        c('HDEL', p .. 'v', id)
        if reported then c('HDEL', p .. 'j', id) end
        els[i] = ''
        last = i
        dropped = dropped + 1
      else
        kept = kept + 1
        next_due = min(next_due or time, time)
      end
    end
  end
  for prefix, count in pairs(batches) do
    forget(p, prefix, count)
    effort = effort - 1
  end
  if kept == 0 and not live then
    forget_runs(p, lease_header(p, no), no)
    forget_steps(p, no, log)
    c('UNLINK', list, p .. 'g:' .. no, p .. 's:' .. no)
    c('ZREM', p .. set, no)
    c('ZREM', p .. 'G', no)
  else
    for i = 1, last do
      if els[i] == '' then c('LSET', list, i, '') c('HDEL', p .. 'g:' .. no, i - 1) end
    end
    if next_due then c('ZADD', p .. set, next_due, no) else c('ZREM', p .. set, no) end
    if dropped >= limit then break end
  end
end

local more = c('ZCOUNT', p .. 'F', '-inf', over) + c('ZCOUNT', p .. 'H', '-inf', over) + c('ZCOUNT', p .. 'kc', '-inf', over)
  + c('ZCOUNT', p .. 'kd', '-inf', over_dead) + c('ZCOUNT', p .. 'G', '-inf', format('%.0f', now))
return {dropped, more > 0 and 1 or 0}
