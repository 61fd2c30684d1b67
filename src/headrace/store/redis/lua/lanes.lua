-- Lanes that have ready jobs: one step of a walk over them. Reads only.
-- ARGV: 1 lanes to look into, 2 where the walk goes on ('': it begins), 3 lanes that the whole walk is for, 4 a number: where there
--   are more, a walk begins elsewhere for another number, 5 jobs to count to
-- Answer: {where the walk goes on ('': it is over), lanes looked into, then lane, jobs, enqueue time of the first…}
local p, most = KEYS[1], tonumber(ARGV[5])
left = tonumber(ARGV[1])
local answer = {'', 0}
-- Most queues have neither cancelled jobs nor jobs that came back. Then a lane takes two commands.
local cancelled, returned = c('EXISTS', p .. HOLES) == 1, c('EXISTS', p .. RETURNED_LANES) == 1

local function first_of(lane)
  local list = p .. READY .. lane
  local el, at = oldest_next(lane, list) or c('LINDEX', list, 0), 0
  for from = 1, 2000, 200 do
    if el ~= '' or left <= 0 then break end
    left = left - 4
    for i, following in ipairs(c('LRANGE', list, from, from + 199)) do
      if following ~= '' then el, at = following, from + i - 1 break end
    end
  end
  local back = returned and c('ZRANGE', p .. RETURNED .. lane, 0, 0, 'WITHSCORES') or {}
  if back[1] then
    local head = tonumber(c('HGET', p .. FIRST_PLACES, lane) or nil)
    if not (el and el ~= '' and head and head + at < tonumber(back[2])) then
      local _, _, _, first = opened(c('HGET', p .. LOOSE, back[1]))
      el = first
    end
  end
  return el
end

local function show(lane)
  local jobs = c('LLEN', p .. READY .. lane)
  if cancelled then jobs = jobs - (c('HGET', p .. HOLES, lane) or 0) end
  if returned then jobs = jobs + c('ZCARD', p .. RETURNED .. lane) end
  local el = jobs > 0 and first_of(lane)
  if not el or el == '' then return end
  local high, low = read('>I4I4', el, 26)
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = lane, min(jobs, most), format('%.0f', high * 4294967296 + low)
end

local at
if ARGV[2] == '' then
  local total = c('HLEN', p .. PARKED)
  for _, priority in ipairs(c('ZRANGE', p .. PRIORITIES, 0, -1)) do total = total + c('LLEN', p .. RING .. priority) end
  at = walk_from(p, total > tonumber(ARGV[3]) and ARGV[4] % total or 0)
else
  at = cmsgpack.unpack(ARGV[2])
end
answer[1] = walk(p, at, show)
answer[2] = looked
return answer
