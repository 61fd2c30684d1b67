-- Move what is due from scheduled to ready.
-- ARGV: 1 clock, 2 at most.  Answer: {moved, µs until the next is due, or -1: none is scheduled}
local p, now = KEYS[1], clock(ARGV[1])
local ids = c('ZRANGEBYSCORE', p .. 'D', '-inf', now, 'LIMIT', 0, ARGV[2])
if #ids > 0 then
  local records, back = c('HMGET', p .. 'E', unpack(ids)), {}
  for i = 1, #ids do
    local seq, lane = opened(records[i])
    back[i] = {lane, seq, ids[i]}
  end
  c('ZREM', p .. 'D', unpack(ids))
  come_back(p, back)
end
local following = c('ZRANGE', p .. 'D', 0, 0, 'WITHSCORES')
return {#ids, following[2] and format('%.0f', max(0, following[2] - now)) or '-1'}
