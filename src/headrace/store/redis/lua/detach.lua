-- Move one unsettled job of a lease into a lease of its own, as its position 0.
-- ARGV: 1 clock, 2 token, 3 position, 4 fresh token.  Answer: 1, or 0: the lease is lost or the job is settled.
local p, now, token = KEYS[1], clock(ARGV[1]), ARGV[2]
local held = c('HGET', p .. TOKENS, token)
c('DEL', p)  -- as in settle
if c('HEXISTS', p .. TOKENS, ARGV[4]) == 1 then return 1 end
if not held then return 0 end
local no, spans = match(held, '^(%d+)(m?)')
local list, log = p .. LEASE .. no, p .. SETTLED_LOG .. no
local total, header = c('LLEN', list) - 1, lease_header(p, no)
local index = tonumber(ARGV[3])
if spans ~= '' then index = index_of(header, index) end
if not index or index < 0 or index >= total then return 0 end
local times, settled = settled_times(c('GET', log))
if times[index] then return 0 end

local el = c('LINDEX', list, index + 1)
local lane, seq = run_of(header, index)
local own = c('HINCRBY', p .. COUNTERS, 'l', 1)
c('RPUSH', p .. LEASE .. own, cmsgpack.pack({ARGV[4], header[2], header[3], header[4], header[5], 0, lane, seq, 1, 0}), el)
c('ZADD', p .. LEASES, c('ZSCORE', p .. LEASES, no), own)
-- The units that it holds go with it: a lease holds what its unsettled jobs need.
c('HSET', p .. TOKENS, ARGV[4], own .. (byte(lane, #lane) == 1 and 'l' or ''))
c('HSET', p .. MOVED, sub(el, 1, 16), own .. ':0:' .. format('%.17g', seq) .. ' ' .. lane)
local stop = c('HGET', p .. STOPS, no .. ':' .. index)
if stop then
  c('HSET', p .. STOPS, own .. ':0', stop)
  c('HDEL', p .. STOPS, no .. ':' .. index)
end
c('LSET', list, index + 1, '')
c('APPEND', log, pack('>dI2I2I2', now, 1, index, index))
if settled + 1 == total and spans == '' then end_lease(p, no, token) end
return 1
