-- Take over the lease that expired first, under a fresh token.
-- ARGV: 1 clock, 2 worker that takes it, 3 ttl µs, 4 fresh token, 5 '' or the token whose part of a lease to take, too, if it has expired
-- Answer: {header as it was, log of what is settled, element…} or nothing.
local p, now = KEYS[1], clock(ARGV[1])
local no
if ARGV[5] == '' then
  no = c('ZRANGEBYSCORE', p .. LEASES, '-inf', now, 'LIMIT', 0, 1)[1]
else
  no = match(c('HGET', p .. TOKENS, ARGV[5]) or '', '%d+')
  -- Its worker may have been heard here and not there: one node of a cluster was down.
  if no and tonumber(c('ZSCORE', p .. LEASES, no) or 0) > now then return {} end
  -- Under the fresh token it is if this was asked before and the answer was lost.
  no = no or match(c('HGET', p .. TOKENS, ARGV[4]) or '', '%d+')
end
if not no then return {} end
c('DEL', p)  -- as in settle
local list = p .. LEASE .. no
local lease = c('LRANGE', list, 0, -1)
local header = cmsgpack.unpack(lease[1])
local held = c('HGET', p .. TOKENS, header[1])
if held and match(held, '%d+') == no then
  c('HDEL', p .. TOKENS, header[1])
else
  -- The token belongs to another lease, or to none. A lease that could not be taken over would block those behind it.
  local limited = false
  for r = 7, #header, 4 do limited = limited or byte(header[r], #header[r]) == 1 end
  held = no .. (header[6] == 1 and 'm' or '') .. (limited and 'l' or '')
end
-- The header names one worker for all jobs. A job that is done already keeps the worker that did it in a record of its own.
local log = c('GET', p .. SETTLED_LOG .. no)
for index, at in pairs((settled_times(log))) do
  local el = lease[index + 2]
  if el ~= '' then
    local id, lane, seq = sub(el, 1, 16), own_place(run_of(header, index))
    local result = c('HGET', p .. RESULTS .. no, index)
    if result then
      result = sub(result, 1, 8) .. pack('>I4', #result - 7) .. sub(result, 9)
      c('HDEL', p .. RESULTS .. no, index)
    end
    c('LSET', list, index + 1, '')
    c('HDEL', p .. MOVED, id)
    ended(p, id, 'o', at, loose(seq, lane, nil, restated(el, 1)), result, header)
  end
end
header[1], header[2], header[5] = ARGV[4], ARGV[2], ''
c('LSET', list, 0, cmsgpack.pack(header))
c('HSET', p .. TOKENS, ARGV[4], held)
c('ZADD', p .. LEASES, now + ARGV[3], no)
table.insert(lease, 2, log or '')
return lease
