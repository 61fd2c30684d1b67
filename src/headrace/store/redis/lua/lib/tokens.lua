-- Tokens that were settled to the end, for a settle that is repeated after a lost answer.

-- They are kept for so many µs, and for twice as long at most: OLDER_TOKENS has those from before the last turn.
local function forget_tokens(p, now, keep)
  if c('EXISTS', p .. SPENT_TOKENS, p .. OLDER_TOKENS) == 0 then return end
  local turned = tonumber(c('HGET', p .. COUNTERS, 'y') or nil)
  if turned and now - turned < keep then return end
  if turned and c('EXISTS', p .. SPENT_TOKENS) == 1 then c('RENAME', p .. SPENT_TOKENS, p .. OLDER_TOKENS) else c('DEL', p .. OLDER_TOKENS) end
  c('HSET', p .. COUNTERS, 'y', format('%.0f', now))
end
