-- Claim, before all else: a queue whose only jobs are a few of one plain lane, which are all taken. An idle worker mostly
-- meets that, and making the functions of the general parts and of the head costs more than these commands do.
-- It changes what the general parts would change. Whatever is not as plain as that, they decide.
if #KEYS <= 3 and ARGV[9] == '' and ARGV[6] == '0' and ARGV[7] ~= '1' and ARGV[8] == '0' then
  local c, p, token, most = redis.call, KEYS[1], ARGV[3], math.min(16, tonumber(ARGV[2]))
  -- On a cluster there is no third key: what concerns the limits of a queue is with the queue itself.
  local home = KEYS[3]
  local g = home or p
  -- Without a bell of its own the caller names a key that never exists.
  local special = c('EXISTS', ARGV[10] or p, p .. PAUSED, p .. RETURNED_LANES, p .. RINGED_TENANTS, p .. ROUNDS, p .. LARGE_LANES,
    g .. OPENINGS, g .. PAUSED_TENANTS)
  local priorities = special == 0 and c('ZRANGE', p .. PRIORITIES, 0, 1)
  local entries = priorities and #priorities == 1 and c('LRANGE', p .. RING .. priorities[1], 0, 1)
  local lane = entries and #entries == 1 and entries[1]
  -- 42 ends a tenant's place for several lanes, 1 a lane with limit keys, 2 one whose jobs waited together.
  local last = lane and string.byte(lane, #lane)
  local counters = lane and last ~= 42 and last > 2 and c('HMGET', p .. COUNTERS, 'l', 'r', 'u')
  -- The number of ready jobs is known before they are read, because they may be large.
  local els = counters and tonumber(counters[2] or 0) <= most and c('LRANGE', p .. READY .. lane, 0, most)
  -- An empty element was cancelled or deleted.
  local plain = els and #els <= most
  for i = 1, plain and #els or 0 do plain = plain and els[i] ~= '' end
  local first = plain and #els > 0 and c('HGET', p .. FIRST_PLACES, lane)
  -- A token that has a lease already: this call is a repetition.
  if first and not c('HGET', p .. TOKENS, token) then
    local now, count, seq = tonumber(ARGV[1] ~= '' and ARGV[1] or nil), #els, tonumber(first)
    if not now then
      local t = c('TIME')
      now = t[1] * 1000000 + t[2]
    end
    local no, expiry = (counters[1] or 0) + 1, now + ARGV[5]
    c('DEL', p .. READY .. lane, p .. RING .. priorities[1], p .. PRIORITIES, p .. MARKER)
    c('HDEL', p .. FIRST_PLACES, lane)
    c('HSET', p .. COUNTERS, 'l', no, 'r', counters[2] - count, 'u', (counters[3] or 0) + count)
    local header = cmsgpack.pack({token, ARGV[4], now, 0, '', 0, lane, seq, count, 0})
    c('ZADD', p .. CLAIMED, 0, lane .. '\0' .. string.format('%015.0f', seq) .. ':' .. no .. ':0:' .. count)
    c('RPUSH', p .. LEASE .. no, header, unpack(els))
    c('ZADD', p .. LEASES, expiry, no)
    if home then c('ZADD', home .. EXPIRING_QUEUES, 'LT', expiry, p) end
    c('HSET', p .. TOKENS, token, no)
    return {{'', {}, 0}, {0, header, unpack(els)}}
  end
end

