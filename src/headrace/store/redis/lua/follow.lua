-- On a cluster: a queue's own copy of the rules and of the tenants that are paused.
-- ARGV: 1 version of it all, 2 number of words for rules, rules, pauses of tenants, both as HGETALL gives them.
local p = KEYS[1]
if tonumber(ARGV[1]) <= tonumber(c('HGET', p .. COUNTERS, 'rules') or 0) then return 0 end
c('DEL', p .. RULES, p .. PAUSED_TENANTS)
local words = tonumber(ARGV[2])
-- In steps: there may be more than Lua's stack takes.
local function copy(key, first, last)
  for a = first, last, 4000 do c('HSET', key, unpack(ARGV, a, min(last, a + 3999))) end
end
copy(p .. RULES, 3, 2 + words)
copy(p .. PAUSED_TENANTS, 3 + words, #ARGV)
c('HSET', p .. COUNTERS, 'rules', ARGV[1])
may_open(p, c('SMEMBERS', p .. PARKING_KEYS))
return 1
