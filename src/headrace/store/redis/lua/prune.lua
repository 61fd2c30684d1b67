-- Drop done and cancelled jobs past their time.
-- ARGV: 1 clock, 2 µs to keep them, 3 at most, 4 µs to remember tokens, 5 to 10 places to go on from: a time, and how many of that time
--   were passed over because gates keep them, of jobs that ended by themselves, of leases settled at once, of those settled in parts;
--   11… on a cluster: gates of other queues that keep nothing
-- Answer: {dropped, 1: there is more, the six words to go on with, prefix and id of gates of other queues that may keep something…}
local p, limit, dropped = KEYS[1], tonumber(ARGV[3]), 0
local effort = 600  -- roughly tens of µs: a lease of a thousand goes whole, of small ones fewer at a time
local now = clock(ARGV[1])
local over = now - ARGV[2]

local OVER = pack('>d', 0)
for a = 11, #ARGV do far_free[ARGV[a]] = true end

-- The next ones of a set past their time.
local places = {[NOT_DEAD] = {ARGV[5], tonumber(ARGV[6])}, [HISTORY] = {ARGV[7], tonumber(ARGV[8])}, [HISTORY_IN_PARTS] = {ARGV[9], tonumber(ARGV[10])}}
local function next_of(set, count)
  return c('ZRANGEBYSCORE', p .. set, places[set][1], over, 'WITHSCORES', 'LIMIT', places[set][2], count)
end
local function pass_over(set, time)
  local at = places[set]
  if at[1] == time then at[2] = at[2] + 1 else at[1], at[2] = time, 1 end
end
local function left(set) return c('ZCOUNT', p .. set, places[set][1], over) - places[set][2] end

local reported, stepped, linked = c('EXISTS', p .. REPORTS) == 1, any_steps(p), c('EXISTS', p .. LINKS) == 1
local function forget_batch(prefix, count)
  if forget(p, prefix, count) and linked then c('HDEL', p .. LINKS, prefix) end
end

forget_tokens(p, now, tonumber(ARGV[4]))
for _, prefix in ipairs(c('SPOP', p .. EMPTY_BATCHES, 200)) do forget_batch(prefix, 0) end

local function needed(id) return linked and is_needed(p, sub(id, 1, 14), read('>I2', id, 15)) end

local ids = next_of(NOT_DEAD, min(100, limit))
for i = 1, #ids, 2 do
  if needed(ids[i]) then
    pass_over(NOT_DEAD, ids[i + 1])
  else
    unended(p, ids[i])
    c('HDEL', p .. FAILURES, ids[i])
    if reported then c('HDEL', p .. REPORTS, ids[i]) end
    if stepped then drop_steps(p, ids[i]) end
    forget_batch(sub(ids[i], 1, 14), 1)
    dropped = dropped + 1
  end
end
effort = effort - 1.5 * #ids

-- Results whose time is over, though their jobs' is not: what stays of each is that there was one.
local moment = format('%.0f', now)
for _, no in ipairs(c('ZRANGEBYSCORE', p .. RESULT_ENDS, '-inf', moment, 'LIMIT', 0, 5)) do
  local stubs, over, later, g = {}, {}, nil, p .. RESULTS .. no
  for _, field in ipairs(c('HKEYS', g)) do
    local at = byte(field) == 100 and tonumber(sub(field, 2))
    if at and at <= now then over[#over + 1] = field elseif at then later = min(later or at, at) end
  end
  for _, field in ipairs(over) do
    local places = c('HGET', g, field)
    for i = 1, #places, 2 do
      stubs[#stubs + 1] = read('>I2', places, i)
      stubs[#stubs + 1] = OVER
    end
    c('HDEL', g, field)
  end
  if #stubs > 0 then each('HSET', g, stubs) end
  if later then c('ZADD', p .. RESULT_ENDS, format('%.0f', later), no) else c('ZREM', p .. RESULT_ENDS, no) end
  effort = effort - 4 - #stubs / 20
end
-- The same for jobs that are kept by themselves.
for _, id in ipairs(c('ZRANGEBYSCORE', p .. SINGLE_RESULT_ENDS, '-inf', moment, 'LIMIT', 0, 100)) do
  local record = c('HGET', p .. ENDED, id)
  if record then
    c('HSET', p .. ENDED, id, sub(record, 1, 17) .. pack('>I4', 1) .. sub(record, 22 + max(0, read('>I4', record, 18) - 1)))
    effort = effort - 1 - #record / 4000
  end
  c('ZREM', p .. SINGLE_RESULT_ENDS, id)
end

-- A lease's list is the history of its jobs, from the first one done: it goes when the last one's time is over.
-- A lease that has ended, and whose first job is needed, stays whole, so that it need not be read.
local function oldest_of(set)
  while true do
    local oldest = next_of(set, 1)
    local no = linked and effort > 0 and oldest[1]
    local first = no and not c('ZSCORE', p .. LEASES, no) and c('LINDEX', p .. LEASE .. no, 1)
    if not first or first == '' or not needed(sub(first, 1, 16)) then return oldest end
    pass_over(set, oldest[2])
    effort = effort - 1
  end
end

local set = HISTORY
while dropped < limit and effort > 0 do
  local oldest = oldest_of(set)
  if not oldest[1] and set == HISTORY then
    set = HISTORY_IN_PARTS
    oldest = oldest_of(set)
  end
  local no = oldest[1]
  if not no then break end
  local horizon, whole = over, tonumber(oldest[2])
  local live = c('ZSCORE', p .. LEASES, no)
  local log = c('GET', p .. SETTLED_LOG .. no)
  local times = settled_times(log)
  local list = p .. LEASE .. no
  local els = c('LRANGE', list, 1, -1)
  local batches, kept, passed, last, next_due = {}, 0, false, 0, nil
  effort = effort - 4 - #els / 2
  for i = 1, #els do
    local el = els[i]
    effort = effort - #el / 4000
    local time = times[i - 1] or (not live and whole) or nil
    if #el > 0 and time then
      local stays = time <= horizon and needed(sub(el, 1, 16))
      passed = passed or stays
      if time <= horizon and dropped < limit and not stays then
        local id, prefix = sub(el, 1, 16), sub(el, 1, 14)
        batches[prefix] = (batches[prefix] or 0) + 1
        if sub(el, 17, 22) ~= '\0\0\0\0\0\0' then c('HDEL', p .. FAILURES, id) end
        c('HDEL', p .. MOVED, id)
        if reported then c('HDEL', p .. REPORTS, id) end
        if stepped then drop_steps(p, id) end
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
    forget_batch(prefix, count)
    effort = effort - 1
  end
  if kept == 0 and not live then
    forget_runs(p, lease_header(p, no), no)
    forget_steps(p, no, log)
    c('UNLINK', list, p .. RESULTS .. no, p .. SETTLED_LOG .. no)
    c('ZREM', p .. set, no)
    c('ZREM', p .. RESULT_ENDS, no)
  else
    for i = 1, last do
      if els[i] == '' then c('LSET', list, i, '') c('HDEL', p .. RESULTS .. no, i - 1) end
    end
    if next_due then c('ZADD', p .. set, next_due, no) else c('ZREM', p .. set, no) end
    if passed and next_due == whole then pass_over(set, oldest[2]) end
    if dropped >= limit then break end
  end
end

if linked and c('EXISTS', p .. LINKS) == 0 then c('HDEL', p .. TOKENS, 'links') end

local more = left(HISTORY) + left(HISTORY_IN_PARTS) + left(NOT_DEAD)
  + c('ZCOUNT', p .. RESULT_ENDS, '-inf', moment) + c('ZCOUNT', p .. SINGLE_RESULT_ENDS, '-inf', moment)
local answer = {dropped, more > 0 and 1 or 0}
for _, one in ipairs({NOT_DEAD, HISTORY, HISTORY_IN_PARTS}) do
  answer[#answer + 1], answer[#answer + 2] = places[one][1], places[one][2]
end
for _, word in ipairs(far_gates) do answer[#answer + 1] = word end
return answer
