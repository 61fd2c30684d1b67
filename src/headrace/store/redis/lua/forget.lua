-- Forget a queue that has had no jobs for a while, totals and all.
-- ARGV: 1 clock, 2 µs that it must have been empty.  Answer: 1: it is gone.
local p, now = KEYS[1], clock(ARGV[1])
-- What a queue has that has jobs, leases or units of limits.
if c('EXISTS', p .. 'X', p .. 'D', p .. 'Z', p .. 'P', p .. 'K', p .. '#u', p .. '#b') > 0 then return 0 end
if pause_of(c('GET', p .. 'p'), now) then return 0 end
c('DEL', p)  -- as in settle
-- Both only grow: while they are the same, no job was enqueued or claimed.
local counted = c('HMGET', p .. 'd', 'e', 'l', 'i')
local mark = (counted[1] or 0) .. ':' .. (counted[2] or 0)
local before, since = match(counted[3] or '', '^(.*)@(%d+)$')
since = tonumber(since)
if before ~= mark or since > now then
  c('HSET', p .. 'd', 'i', mark .. format('@%.0f', now))
  return 0
end
if now - since < tonumber(ARGV[2]) then return 0 end
local keys = {}
for name in string.gmatch('d h b x S s K o w E t c v q y y2 j p F H f G k kd kc ki e m n nx #r #t #l #w #q #o', '%S+') do
  keys[#keys + 1] = p .. name
end
c('UNLINK', unpack(keys))
if HOME then
  local prefix, name = match(p, '^(.*):{(.*)}:$')
  c('SREM', prefix .. ':queues', name)
  c('HDEL', HOME .. '#p', name)
  c('ZREM', HOME .. '#d', p)
  c('ZREM', HOME .. '#z', p)
end
return 1
