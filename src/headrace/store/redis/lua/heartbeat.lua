-- Renew leases; say which are lost and which of their jobs to stop.
-- ARGV: 1 clock, 2 ttl µs, 3… tokens.  Answer: {alive as 0 or 1 per token, stops as number of the token from 0, position…}
local p, now = KEYS[1], clock(ARGV[1])
c('DEL', p)  -- as in settle: a full server must not lose its leases
local stops = c('EXISTS', p .. STOPS) == 1
local alive, stop, whose = {}, {}, {}
by_then(EXPIRING_QUEUES, now + ARGV[2], p)  -- it may be a shorter time than before
for a = 3, #ARGV do
  local held = c('HGET', p .. TOKENS, ARGV[a])
  alive[a - 2] = held and 1 or 0
  if held then
    local no, spans = match(held, '^(%d+)(m?)')
    c('ZADD', p .. LEASES, now + ARGV[2], no)
    if stops then whose[no] = {a - 3, spans ~= ''} end
  end
end
if stops then
  for _, field in ipairs(c('HKEYS', p .. STOPS)) do
    local no, index = match(field, '^(%d+):(%d+)$')
    local lease = whose[no]
    if lease then
      index = tonumber(index)
      if lease[2] then
        local _, _, position = run_of(lease_header(p, no), index)
        index = position
      end
      stop[#stop + 1] = lease[1]
      stop[#stop + 1] = index
    end
  end
end
return {alive, stop}
