-- Tokens that were settled to the end, for a settle that is repeated after a lost answer.

-- They are remembered for so many µs, and for twice as long at most: those before the last turn of `y` are in `y2`.
local function forget_tokens(p, now, keep)
  if now - tonumber(c('HGET', p .. 'd', 'y') or 0) < keep or c('EXISTS', p .. 'y', p .. 'y2') == 0 then return end
  if c('EXISTS', p .. 'y') == 1 then c('RENAME', p .. 'y', p .. 'y2') else c('DEL', p .. 'y2') end
  c('HSET', p .. 'd', 'y', format('%.0f', now))
end
