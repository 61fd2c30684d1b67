-- Jobs that came to an end, the earliest first. Reads only.
-- ARGV: 1 since µs, 2 at most
-- Answer: {when, state as a letter, lane, head of the element}…, at least the first so many by time and id, not in order.
local p, since, limit = KEYS[1], ARGV[1], tonumber(ARGV[2])
local answer = {}
local function add(at, state, lane, el)
  answer[#answer + 1] = {format('%.0f', at), state, lane, sub(el, 1, 38 + byte(el, 34))}
end

-- Each of the two kinds of lists by time: as many as it takes, and all of the same moment.
local function walk(key, visit)
  local found, from, last = 0, 0, nil
  while true do
    local some = c('ZRANGEBYSCORE', key, since, '+inf', 'WITHSCORES', 'LIMIT', from, 50)
    for i = 1, #some, 2 do
      local at = tonumber(some[i + 1])
      if found >= limit and at ~= last then return end
      found, last = found + visit(some[i], at), at
    end
    if #some < 100 then return end
    from = from + 50
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

walk(p .. 'F', function(no, at)
  -- One that is settled in parts is in the other set, part by part.
  if c('EXISTS', p .. 's:' .. no) == 1 then return 0 end
  return in_lease(no, 0, -2, at)
end)
walk(p .. 'f', function(step, at)
  local no, offset = match(step, '^(%d+):(%d+)$')
  local log, count = c('GET', p .. 's:' .. no), 0
  if not log then return 0 end
  local at_byte = offset + 1
  local parts = read('>I2', log, at_byte + 8)
  for part = 0, parts - 1 do
    local from, to = read('>I2I2', log, at_byte + 10 + 4 * part)
    count = count + in_lease(no, from, to, at)
  end
  return count
end)
for _, set in ipairs({'kd', 'kc'}) do
  local ids = c('ZRANGEBYSCORE', p .. set, since, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for a = 1, #ids, 200 do
    local names = {}
    for i = a, min(#ids, a + 199), 2 do names[#names + 1] = ids[i] end
    for i, record in ipairs(c('HMGET', p .. 'k', unpack(names))) do
      local state, loosened = ended_record(record)
      local _, lane, _, el = opened(loosened)
      add(tonumber(ids[a + 2 * i - 1]), state, lane, el)
    end
  end
end
return answer
