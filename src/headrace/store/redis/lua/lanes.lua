-- Lanes that have ready jobs. Reads only.
-- ARGV: 1 at most, 2 a number: where there are more, others are shown for another number, 3 jobs to count to
-- Answer: {lane, jobs, enqueue time of the first}…
local p, limit, turn, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local answer, seen = {}, {}
local gaps = 20000  -- places of cancelled jobs to read over
local looks = 2 * limit + 50  -- lanes to look into, also those that have nothing to show

local function first_of(lane)
  local list = p .. 'L:' .. lane
  local el = c('LINDEX', list, 0)
  for from = 1, 2000, 200 do
    if el ~= '' or gaps <= 0 then break end
    gaps = gaps - 200
    for _, following in ipairs(c('LRANGE', list, from, from + 199)) do
      if following ~= '' then el = following break end
    end
  end
  local back = c('ZRANGE', p .. 'B:' .. lane, 0, 0, 'WITHSCORES')
  local head = tonumber(c('HGET', p .. 'h', lane) or nil)
  if back[1] and not (el and el ~= '' and head and head < tonumber(back[2])) then
    local _, _, _, returned = opened(c('HGET', p .. 'E', back[1]))
    el = returned
  end
  return el
end

local function show(lane)
  if #answer >= limit or looks <= 0 or seen[lane] then return end
  seen[lane] = true
  looks = looks - 1
  local jobs = c('LLEN', p .. 'L:' .. lane) - (c('HGET', p .. 'x', lane) or 0) + c('ZCARD', p .. 'B:' .. lane)
  local el = jobs > 0 and first_of(lane)
  if not el or el == '' then return end
  local high, low = read('>I4I4', el, 26)
  answer[#answer + 1] = {lane, min(jobs, most), format('%.0f', high * 4294967296 + low)}
end

local function show_entry(entry)
  if byte(entry, #entry) ~= 42 then return show(entry) end
  if #answer >= limit or looks <= 0 then return end
  for _, lane in ipairs(c('LRANGE', p .. 'T:' .. sub(entry, 1, -3), 0, min(looks, limit) - 1)) do show(lane) end
end

-- The rings one after the other, and what is parked, seen as one long list that is read from some place on.
local rings, total = {}, 0
for _, priority in ipairs(c('ZRANGE', p .. 'P', 0, -1)) do
  local length = c('LLEN', p .. 'R:' .. priority)
  rings[#rings + 1] = {p .. 'R:' .. priority, length}
  total = total + length
end
local parked = c('HLEN', p .. 'K')
local skip = total + parked > limit and turn % (total + parked) or 0
if parked > 0 and (parked <= limit or skip >= total) then
  for _, entry in ipairs(parked <= limit and c('HKEYS', p .. 'K') or c('HRANDFIELD', p .. 'K', limit)) do show_entry(entry) end
end
for round = 1, skip > 0 and 2 or 1 do
  for _, ring in ipairs(rings) do
    local from = round == 1 and min(skip, ring[2]) or 0
    skip = skip - from
    for at = from, ring[2] - 1, 500 do
      if #answer >= limit or looks <= 0 then return answer end
      for _, entry in ipairs(c('LRANGE', ring[1], at, at + 499)) do show_entry(entry) end
    end
  end
end
return answer
