-- How many shards a queue has: the number only grows, whichever store writes it last.
-- KEYS: the numbers of all queues.  ARGV: 1 queue, 2 it is to have so many.  Answer: it has so many.
local known = tonumber(c('HGET', KEYS[1], ARGV[1]) or 1)
if known >= tonumber(ARGV[2]) then return known end
c('HSET', KEYS[1], ARGV[1], ARGV[2])
return tonumber(ARGV[2])
