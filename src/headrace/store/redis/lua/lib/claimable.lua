-- Whether a queue has something to claim: jobs in its ring, or jobs under a limit that has opened.
local function claimable(p, g, now)
  if pause_of(c('GET', p .. PAUSED), now) then return false end
  if c('EXISTS', p .. PRIORITIES) == 1 then return true end
  local opening = c('ZRANGE', g .. OPENINGS, 0, 0, 'WITHSCORES')[2]
  return opening ~= nil and tonumber(opening) <= now and c('SISMEMBER', g .. PARKING_QUEUES, p) == 1
end
