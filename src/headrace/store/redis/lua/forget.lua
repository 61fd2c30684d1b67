-- On one server: drop a queue that has no jobs. Its counters are kept aside, so its totals and its places go on where they were.
-- ARGV: 1 clock, 2 µs to remember tokens.  Answer: 1: it is gone.
local p, now = KEYS[1], clock(ARGV[1])
if c('EXISTS', p .. 'X', p .. 'D', p .. 'Z', p .. 'P', p .. 'K') > 0 then return 0 end
if pause_of(c('GET', p .. 'p'), now) then return 0 end
c('DEL', p)  -- as in settle
forget_tokens(p, now, tonumber(ARGV[2]))
if c('EXISTS', p .. 'y', p .. 'y2') > 0 then return 0 end
local prefix, name = match(p, '^(.*):{(.*)}:$')
local counters = c('HGETALL', p .. 'd')
if #counters > 0 then c('HSET', HOME .. '#s', name, cmsgpack.pack(counters)) end
local keys = {}
for key in string.gmatch('d h b x S s o w E t c v q j p F H f G k kd kc ki e m n nx', '%S+') do keys[#keys + 1] = p .. key end
c('UNLINK', unpack(keys))
c('SREM', prefix .. ':queues', name)
c('HDEL', HOME .. '#p', name)
c('ZREM', HOME .. '#d', p)
c('ZREM', HOME .. '#z', p)
return 1
