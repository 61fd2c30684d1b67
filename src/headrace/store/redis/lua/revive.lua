-- On a cluster: a queue that was forgotten, or is new, takes jobs again. It is on the list by now.
-- ARGV: 1 the mark that the caller met ('': none), then its counters as they were kept: field, counter…
-- Answer: 0: it has another mark, so it may be off the list again
local p = KEYS[1]
local known = c('HMGET', p .. COUNTERS, 'e', 'g')
if (known[2] or '') ~= ARGV[1] then return 0 end
if not known[1] then
  if #ARGV > 1 then c('HSET', p .. COUNTERS, unpack(ARGV, 2)) end
  c('HSETNX', p .. COUNTERS, 'e', 0)
end
c('HDEL', p .. COUNTERS, 'g')
return 1
