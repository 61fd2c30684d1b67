-- Leases that are settled: in parts, or to the end. Needs leases.

-- When each settled index was settled: the log of a lease that is settled in parts. Answers times and their number.
local function settled_times(log)
  local times, n, at = {}, 0, 1
  while log and at <= #log do
    local time, count
    time, count, at = read('>dI2', log, at)
    for _ = 1, count do
      local from, to
      from, to, at = read('>I2I2', log, at)
      for i = from, to do times[i] = time end
      n = n + to - from + 1
    end
  end
  return times, n
end

local function forget_runs(p, header, no)
  local gone, index = {}, 0
  for r = RUNS, #header, 4 do
    gone[#gone + 1] = place(header[r], header[r + 1]) .. ':' .. no .. ':' .. index .. ':' .. header[r + 2]
    index = index + header[r + 2]
  end
  each('ZREM', p .. CLAIMED, gone)
end

-- Nor are the steps of its log found by their times.
local function forget_steps(p, no, log)
  local steps, at = {}, 1
  while log and at <= #log do
    steps[#steps + 1] = no .. ':' .. at - 1
    at = at + 10 + 4 * read('>I2', log, at + 8)
  end
  each('ZREM', p .. SETTLED_STEPS, steps)
end

-- The token is spent. What is done stays where it is: the lease's list is the history of its jobs.
local function end_lease(p, no, token)
  c('HDEL', p .. TOKENS, token)
  c('ZREM', p .. LEASES, no)
  c('LPUSH', p .. SPENT_TOKENS, token)
  c('LTRIM', p .. SPENT_TOKENS, 0, 9999)
  if not c('ZSCORE', p .. HISTORY, no) and not c('ZSCORE', p .. HISTORY_IN_PARTS, no) then
    forget_runs(p, lease_header(p, no), no)
    forget_steps(p, no, c('GET', p .. SETTLED_LOG .. no))
    c('UNLINK', p .. LEASE .. no, p .. RESULTS .. no, p .. SETTLED_LOG .. no)
    c('ZREM', p .. RESULT_ENDS, no)
  end
end
