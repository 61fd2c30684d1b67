-- One question to many queues at once: which of them have something to say. Reads only.
-- KEYS: the queues.  ARGV: 1 the question, 2… its words
-- Answer: {number of a queue in KEYS from 0, what it says}…, without the queues that have nothing to say.

local function any(p, ...)
  for _, name in ipairs({...}) do if c('EXISTS', p .. name) == 1 then return true end end
  return false
end

local function since(p, set, low, high) return c('ZCOUNT', p .. set, low, high) > 0 end

local holds = {
  w = function(p) return tonumber(c('HGET', p .. COUNTERS, 'r') or 0) > 0 end,
  u = function(p) return any(p, BLOCKED, CLOSED, CHAINS) end,
  s = function(p) return any(p, SCHEDULED) end,
  l = function(p) return any(p, LEASES) end,
  o = function(p) return any(p, HISTORY, HISTORY_IN_PARTS, NOT_DEAD) end,
  d = function(p) return any(p, ENDED_IDS) end,
  c = function(p) return any(p, ENDED_IDS) end,
}

-- The last id of an enqueue call; of one with very many runs the last that there could be.
local function newest_in(entry)
  if #entry > 5000 then return sub(entry, 1, 14) .. '\255\255' end
  local runs, last = cmsgpack.unpack(sub(entry, 15)), 0
  for r = 2, #runs, 4 do last = max(last, runs[r + 2]) end
  return sub(entry, 1, 14) .. pack('>I2', last)
end

local questions = {
  -- Words: the 14 bytes of enqueue calls. Says the numbers from 0 of those that it has jobs of.
  batches = function(p)
    local known = {}
    for a = 2, #ARGV do
      if c('ZLEXCOUNT', p .. BATCHES, '[' .. ARGV[a], '(' .. ARGV[a] .. '\255') > 0 then known[#known + 1] = a - 2 end
    end
    return #known > 0 and known
  end,
  -- Words: tokens. Says the numbers from 0 of those that it has a lease of.
  tokens = function(p)
    local known = {}
    for i, no in ipairs(c('HMGET', p .. TOKENS, unpack(ARGV, 2))) do if no then known[#known + 1] = i - 1 end end
    return #known > 0 and known
  end,
  -- Words: ids of gates. Says the numbers from 0 of those that it has.
  gates = function(p)
    local known = {}
    for a = 2, #ARGV do if c('EXISTS', p .. GATE .. ARGV[a]) == 1 then known[#known + 1] = a - 2 end end
    return #known > 0 and known
  end,
  -- Says whether it has gates that may be dropped.
  gated = function(p) return any(p, OVER_GATES, UNSEALED_GATES, SIGNALS) and 1 end,
  running = function(p) return any(p, LEASES) and 1 end,
  counted = function(p) return any(p, COUNTERS) and c('HEXISTS', p .. COUNTERS, 'g') == 0 and 1 end,
  -- Says ready, running, done, failed and enqueued jobs, then scheduled and dead ones, its pause or '', and blocked ones.
  figures = function(p)
    local d = c('HMGET', p .. COUNTERS, 'r', 'u', 'o', 'f', 'e', 'b')
    for i = 1, 6 do d[i] = d[i] or 0 end
    d[9] = c('HLEN', p .. BLOCKED) + d[6]
    d[6], d[7], d[8] = c('ZCARD', p .. SCHEDULED), c('ZCARD', p .. DEAD), c('GET', p .. PAUSED) or ''
    return d
  end,
  -- Words: µs. Says whether jobs have ended since.
  past = function(p)
    for _, set in ipairs({HISTORY, SETTLED_STEPS, DEAD, NOT_DEAD}) do if since(p, set, ARGV[2], '+inf') then return 1 end end
    return nil
  end,
  -- Words: a bound by name from above, states as letters. Says an id that no job of its enqueue calls below the bound is
  -- above, if it has jobs in one of these states (none given: in any).
  newest = function(p)
    local some = ARGV[3] == ''
    for state in string.gmatch(ARGV[3], '.') do some = some or holds[state](p) end
    local entry = some and c('ZREVRANGEBYLEX', p .. BATCHES, ARGV[2], '-', 'LIMIT', 0, 1)[1]
    return entry and newest_in(entry)
  end,
  -- Words: µs. Says whether it has dead jobs that ended by then.
  dead = function(p) return since(p, DEAD, '-inf', ARGV[2]) and 1 end,
  -- Words: µs by which done jobs, results and remembered tokens are over. Says 1: there is something to drop,
  -- 2: it has no jobs.
  old = function(p)
    local done, now, remembered = ARGV[2], ARGV[3], ARGV[4]
    -- On a cluster forgetting takes five calls, so a queue is named when nothing keeps it.
    if not any(p, BATCHES) and (HOME or not any(p, SPENT_TOKENS, OLDER_TOKENS, LOCKS, BUCKETS) and not pause_of(c('GET', p .. PAUSED), tonumber(now))) then
      return 2
    end
    if since(p, RESULT_ENDS, '-inf', now) or since(p, SINGLE_RESULT_ENDS, '-inf', now) or any(p, EMPTY_BATCHES) then return 1 end
    for _, set in ipairs({HISTORY, HISTORY_IN_PARTS, NOT_DEAD}) do if since(p, set, '-inf', done) then return 1 end end
    if any(p, SPENT_TOKENS, OLDER_TOKENS) and tonumber(c('HGET', p .. COUNTERS, 'y') or 0) <= tonumber(remembered) then return 1 end
    return nil
  end,
}

local ask, answer = questions[ARGV[1]], {}
for i = 1, #KEYS - 1, 2 do
  local says = ask(KEYS[i])
  if says then answer[#answer + 1] = {(i - 1) / 2, says} end
end
return answer
