-- A queue in figures. Reads only.
-- ARGV: 1 clock, 2 lanes to look at for the oldest job
-- Answer: {ready, scheduled, running, dead, done, failed, enqueued, enqueue time of the oldest ready job seen or '', paused}
local p, now = KEYS[1], clock(ARGV[1])
local d = c('HMGET', p .. 'd', 'r', 'u', 'o', 'f', 'e')
local oldest
local function look(el)
  if el and #el > 0 then
    local high, low = read('>I4I4', el, 26)
    local at = high * 4294967296 + low
    oldest = min(oldest or at, at)
  end
end
local function look_at(lane)
  local list = p .. 'L:' .. lane
  local el = c('LINDEX', list, 0)
  if el == '' then
    for _, following in ipairs(c('LRANGE', list, 1, 999)) do
      if following ~= '' then el = following break end
    end
  end
  look(el)
  local first = c('ZRANGE', p .. 'B:' .. lane, 0, 0)[1]
  if first then
    local _, _, _, back = opened(c('HGET', p .. 'E', first))
    look(back)
  end
end
local left = tonumber(ARGV[2])
for _, priority in ipairs(c('ZRANGE', p .. 'P', 0, -1)) do
  for _, entry in ipairs(c('LRANGE', p .. 'R:' .. priority, 0, left - 1)) do
    if byte(entry, #entry) == 42 then
      for _, lane in ipairs(c('LRANGE', p .. 'T:' .. sub(entry, 1, -3), 0, left - 1)) do look_at(lane) left = left - 1 end
    else
      look_at(entry)
      left = left - 1
    end
    if left <= 0 then break end
  end
  if left <= 0 then break end
end
for _, entry in ipairs(left > 0 and c('HRANDFIELD', p .. 'K', left) or {}) do
  if byte(entry, #entry) == 42 then
    for _, lane in ipairs(c('LRANGE', p .. 'T:' .. sub(entry, 1, -3), 0, left - 1)) do look_at(lane) end
  else
    look_at(entry)
  end
end
return {d[1] or 0, c('ZCARD', p .. 'D'), d[2] or 0, c('ZCARD', p .. 'kd'), d[3] or 0, d[4] or 0, d[5] or 0,
  oldest and format('%.0f', oldest) or '', pause_of(c('GET', p .. 'p'), now) and 1 or 0, format('%.0f', now)}
