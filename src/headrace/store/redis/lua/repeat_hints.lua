-- Lay the marker of each queue that has something to claim. It may have been lost.
-- KEYS: queues, and the home of limits. ARGV: 1 clock
local now = clock(ARGV[1])
for i = 1, #KEYS - 1, 2 do
  local p = KEYS[i]
  local opening = c('ZRANGE', home(p) .. OPENINGS, 0, 0, 'WITHSCORES')[2]
  local opened = opening and tonumber(opening) <= now and c('SISMEMBER', home(p) .. PARKING_QUEUES, p) == 1
  if (opened or c('EXISTS', p .. PRIORITIES) == 1) and not pause_of(c('GET', p .. PAUSED), now) then wake(p) end
end
