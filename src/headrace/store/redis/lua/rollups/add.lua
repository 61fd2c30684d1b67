-- Add rollups. One whose key exists changes nothing.
-- ARGV: key and rollup of each
local p = KEYS[1]
-- The counters exist from the first rollup on, as those of a queue do: see keys.py.
c('HSETNX', KEYS[2], 'folds', 0)
for i = 1, #ARGV, 2 do
  if c('HSETNX', p .. ROLLUP_VALUES, ARGV[i], ARGV[i + 1]) == 1 then c('ZADD', p .. ROLLUPS, 0, ARGV[i]) end
end
return 0
