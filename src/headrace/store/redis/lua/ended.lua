-- Jobs that came to an end, the earliest first, a bounded number of elements per call. Reads only.
-- ARGV: 1 at most, 2 elements to read, then for each of the sets F, f, kd and kc: from which µs on ('': skip the set), how many
--   members of that very moment to skip, and how many jobs of the member after those
-- Answer: {those twelve words to go on with ('': the set has no more), then {when, state as a letter, lane, head of the
--   element}…}. Every set is complete up to the moment it goes on with; the jobs are not in order.
local p, limit = KEYS[1], tonumber(ARGV[1])
local answer = {}
local effort = tonumber(ARGV[2])

local function add(at, state, lane, el)
  answer[#answer + 1] = {format('%.0f', at), state, lane, sub(el, 1, 38 + byte(el, 34))}
end

-- Answers where to go on. `visit` answers how many jobs it added, and how many it has passed if the member has more.
local function go_through(number, set, visit)
  local from, skip, passed = ARGV[3 * number], tonumber(ARGV[3 * number + 1]), tonumber(ARGV[3 * number + 2])
  if from == '' then return '', 0, 0 end
  local added, last = 0, nil
  while true do
    local some = c('ZRANGEBYSCORE', p .. set, from, '+inf', 'WITHSCORES', 'LIMIT', skip, 50)
    for i = 1, #some, 2 do
      local score = some[i + 1]
      if score ~= from then from, skip, passed = score, 0, 0 end
      if effort <= 0 or (added >= limit and score ~= last) then return from, skip, passed end
      effort = effort - 1
      local count, rest = visit(some[i], tonumber(score), passed)
      added, last = added + count, score
      if rest then return from, skip, rest end
      skip, passed = skip + 1, 0
    end
    if #some < 100 then return '', 0, 0 end
  end
end

-- A lease's header and log are read once per call: many steps can be of one lease.
local headers, logs = {}, {}
local function lanes_of(no)
  local lanes = headers[no]
  if not lanes then
    local header, index = lease_header(p, no), 0
    lanes = {}
    for r = RUNS, #header, 4 do for _ = 1, header[r + 2] do lanes[index] = header[r] index = index + 1 end end
    headers[no] = lanes
    effort = effort - #header / 4 - index / 8
  end
  return lanes
end

local function log_of(no)
  local log = logs[no]
  if log == nil then
    log = c('GET', p .. SETTLED_LOG .. no) or false
    logs[no] = log
    effort = effort - #(log or '') / 1000
  end
  return log
end

-- Jobs of a lease from one index to another without the first so many. The first few say how large they are.
local function in_lease(no, from, to, at, passed)
  local lanes, count, size = lanes_of(no), 0, 10
  local index = from + passed
  while index <= to do
    if effort <= 0 and index > from + passed then return count, index - from end
    local els, bytes = c('LRANGE', p .. LEASE .. no, index + 1, min(to, index + size - 1) + 1), 0
    if #els == 0 then break end
    for i = 1, #els do
      bytes = bytes + #els[i]
      if els[i] ~= '' then
        add(at, 'o', lanes[index + i - 1], els[i])
        count = count + 1
      end
    end
    effort = effort - #els - bytes / 500
    index = index + #els
    size = max(1, min(100, floor(100000 * #els / max(1, bytes))))
  end
  return count
end

local function whole(no, at, passed) return in_lease(no, 0, c('LLEN', p .. LEASE .. no) - 2, at, passed) end

-- The parts of a step follow on each other, so `passed` counts over all of them.
local function step_of(step, at, passed)
  local no, offset = match(step, '^(%d+):(%d+)$')
  local log, count, before, begun = log_of(no), 0, 0, false
  if not log then return 0 end
  for part = 0, read('>I2', log, offset + 9) - 1 do
    local from, to = read('>I2I2', log, offset + 11 + 4 * part)
    local jobs = to - from + 1
    if passed < before + jobs then
      if effort <= 0 and begun then return count, before end
      begun = true
      local some, rest = in_lease(no, from, to, at, max(0, passed - before))
      count = count + some
      if rest then return count, before + rest end
    end
    before = before + jobs
  end
  return count
end

local function single(id, at)
  local kept = c('HGET', p .. ENDED, id)
  local state, record = ended_record(kept)
  local _, lane, _, el = opened(record)
  effort = effort - 1 - #kept / 500
  add(at, state, lane, el)
  return 1
end

local words = {}
for number, set in ipairs({{HISTORY, whole}, {SETTLED_STEPS, step_of}, {DEAD, single}, {NOT_DEAD, single}}) do
  local w = 3 * number
  words[w - 2], words[w - 1], words[w] = go_through(number, set[1], set[2])
end
for i = 1, #answer do words[12 + i] = answer[i] end
return words
