-- Forget what says nothing any more: locks of jobs that are gone, buckets that are full, pauses that are over.
-- KEYS: a queue, or the home of limits.  ARGV: 1 clock, 2 where to go on in the locks, 3 in the buckets
-- Answer: where to go on in both.
local g, now = KEYS[1], clock(ARGV[1])
local found = c('HSCAN', g .. '#l', ARGV[2], 'COUNT', 100)
for i = 1, #found[2], 2 do
  local known = found[2][i + 1]
  if not where(sub(known, 17), sub(known, 1, 16)) then c('HDEL', g .. '#l', found[2][i]) end
end
local buckets = c('HSCAN', g .. '#b', ARGV[3], 'COUNT', 200)
for i = 1, #buckets[2], 2 do
  local key = buckets[2][i]
  local rule = rule_of(c('HGET', g .. '#r', key) or c('HGET', g .. '#r', match(key, '^([^:]*)')))
  local units, at = read('>dd', buckets[2][i + 1])
  if not rule or not rule.rate or units + rule.rate * (now - at) / 1000000 >= rule.burst then c('HDEL', g .. '#b', key) end
end
for _, hash in ipairs({'#t', '#a'}) do
  local pauses = c('HSCAN', g .. hash, 0, 'COUNT', 100)[2]
  for i = 1, #pauses, 2 do
    if not pause_of(pauses[i + 1], now) then c('HDEL', g .. hash, pauses[i]) end
  end
end
return {found[1], buckets[1]}
