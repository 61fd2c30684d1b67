-- Jobs that came to an end, the earliest first, a bounded amount of work per call. Reads only.
-- ARGV: 1 at most, then for each of the sets F, f, kd and kc: from which µs on ('': skip the set), and how many members of
--   that very moment to skip.
-- Answer: {those eight words to go on with ('': the set has no more), then {when, state as a letter, lane, head of the
--   element}…}. Every set is complete up to the moment it goes on with; the jobs are not in order.
local p, limit = KEYS[1], tonumber(ARGV[1])
local answer = {}
local effort = 5000  -- roughly µs

local function add(at, state, lane, el)
  answer[#answer + 1] = {format('%.0f', at), state, lane, sub(el, 1, 38 + byte(el, 34))}
  effort = effort - 1 - #el / 500
end

-- Answers where to go on.
local function walk(number, set, visit)
  local from, skip = ARGV[2 * number], tonumber(ARGV[2 * number + 1])
  if from == '' then return '', 0 end
  local found, last = 0, nil
  while true do
    local some = c('ZRANGEBYSCORE', p .. set, from, '+inf', 'WITHSCORES', 'LIMIT', skip, 50)
    for i = 1, #some, 2 do
      local score = some[i + 1]
      if effort <= 0 or (found >= limit and score ~= last) then
        if score ~= from then return score, 0 end
        return from, skip
      end
      if score == from then skip = skip + 1 else from, skip = score, 1 end
      effort = effort - 4
      found, last = found + visit(some[i], tonumber(score)), score
    end
    if #some < 100 then return '', 0 end
  end
end

local function in_lease(no, from, to, at)
  local els, header = c('LRANGE', p .. 'l:' .. no, from + 1, to + 1), lease_header(p, no)
  local lanes, index = {}, 0
  for r = RUNS, #header, 4 do for _ = 1, header[r + 2] do lanes[index] = header[r] index = index + 1 end end
  local count = 0
  for i = 1, #els do
    if els[i] ~= '' then
      add(at, 'o', lanes[from + i - 1], els[i])
      count = count + 1
    end
  end
  return count
end

local function step_of(step, at)
  local no, offset = match(step, '^(%d+):(%d+)$')
  local log, count = c('GET', p .. 's:' .. no), 0
  if not log then return 0 end
  for part = 0, read('>I2', log, offset + 9) - 1 do
    local from, to = read('>I2I2', log, offset + 11 + 4 * part)
    count = count + in_lease(no, from, to, at)
  end
  return count
end

local function single(id, at)
  local kept = c('HGET', p .. 'k', id)
  local state, record = ended_record(kept)
  local _, lane, _, el = opened(record)
  effort = effort - #kept / 500
  add(at, state, lane, el)
  return 1
end

local sets = {{'F', function(no, at) return in_lease(no, 0, -2, at) end}, {'f', step_of}, {'kd', single}, {'kc', single}}
local words = {}
for number, set in ipairs(sets) do
  words[2 * number - 1], words[2 * number] = walk(number, set[1], set[2])
end
for i = 1, #answer do words[8 + i] = answer[i] end
return words
