-- On a cluster: drop the keys of a queue that is off the list, if it still has the mark.
-- ARGV: 1 the mark
local p = KEYS[1]
if c('HGET', p .. COUNTERS, 'g') == ARGV[1] then drop(p) end
return 1
