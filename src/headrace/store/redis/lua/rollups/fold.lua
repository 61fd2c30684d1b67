-- Replace rollups by others.
-- ARGV: 1 how many go; their keys; then key and rollup of each that comes
-- Answer: 1, or 0 if one of those to replace is gone: then nothing is changed.
local p, last = KEYS[1], 1 + tonumber(ARGV[1])
for i = 2, last do
  if c('HEXISTS', p .. ROLLUP_VALUES, ARGV[i]) == 0 then return 0 end
end
for i = 2, last do
  c('HDEL', p .. ROLLUP_VALUES, ARGV[i])
  c('ZREM', p .. ROLLUPS, ARGV[i])
end
for i = last + 1, #ARGV, 2 do
  if c('HSETNX', p .. ROLLUP_VALUES, ARGV[i], ARGV[i + 1]) == 1 then c('ZADD', p .. ROLLUPS, 0, ARGV[i]) end
end
c('HINCRBY', KEYS[2], 'folds', 1)
return 1
