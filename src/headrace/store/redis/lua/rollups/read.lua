-- Read a page of rollups.
-- ARGV: 1 and 2 the range of keys as ZRANGE takes it, 3 how many
-- Answer: how often rollups were folded, the keys, the rollups.
local p = KEYS[1]
local folds = c('HGET', KEYS[2], 'folds') or 0
local keys = c('ZRANGE', p .. ROLLUPS, ARGV[1], ARGV[2], 'BYLEX', 'LIMIT', 0, ARGV[3])
return {tonumber(folds), keys, #keys > 0 and c('HMGET', p .. ROLLUP_VALUES, unpack(keys)) or {}}
