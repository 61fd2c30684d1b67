-- On a cluster: a queue that was forgotten, or is new, takes jobs again. It is on the list by now.
-- ARGV: 1 the mark that the caller met ('': none), then its counters as they were kept: field, counter…
-- Answer: 0: it has another mark, so it may be off the list again
local p = KEYS[1]
local known = c('HMGET', p .. 'd', 'e', 'g')
if (known[2] or '') ~= ARGV[1] then return 0 end
if not known[1] then
  if #ARGV > 1 then c('HSET', p .. 'd', unpack(ARGV, 2)) end
  c('HSETNX', p .. 'd', 'e', 0)
end
c('HDEL', p .. 'd', 'g')
return 1
