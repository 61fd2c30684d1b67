-- On a cluster: a queue's own copy of the rules and of the tenants that are paused.
-- ARGV: 1 version of it all, 2 number of words for rules, rules, pauses of tenants, both as HGETALL gives them.
local p = KEYS[1]
if tonumber(ARGV[1]) <= tonumber(c('HGET', p .. 'd', 'rules') or 0) then return 0 end
c('DEL', p .. '#r', p .. '#t')
local words = tonumber(ARGV[2])
if words > 0 then each('HSET', p .. '#r', {unpack(ARGV, 3, 2 + words)}) end
if #ARGV > 2 + words then each('HSET', p .. '#t', {unpack(ARGV, 3 + words)}) end
c('HSET', p .. 'd', 'rules', ARGV[1])
may_open(p, c('SMEMBERS', p .. '#w'))
return 1
