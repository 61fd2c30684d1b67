-- Claim, before all else: a queue whose only jobs are a few of one plain lane, which are all taken. An idle worker mostly
-- meets that, and making the functions of the general parts costs more than these commands do.
-- It changes what the general parts would change. Whatever is not as plain as that, they decide.
if #KEYS <= 3 and ARGV[9] == '' and ARGV[6] == '0' and ARGV[7] ~= '1' and ARGV[8] == '0' then
  local p, most = KEYS[1], min(16, tonumber(ARGV[2]))
  local g = home(p)
  -- Without a bell of its own the caller names a key that never exists.
  local special = c('EXISTS', ARGV[10] or p, p .. PAUSED, p .. RETURNED_LANES, p .. RINGED_TENANTS, p .. ROUNDS,
    g .. OPENINGS, g .. PAUSED_TENANTS)
  local priorities = special == 0 and c('ZRANGE', p .. PRIORITIES, 0, 1)
  local entries = priorities and #priorities == 1 and c('LRANGE', p .. RING .. priorities[1], 0, 1)
  local lane = entries and #entries == 1 and entries[1]
  -- 42 ends a tenant's place for several lanes, 1 a lane with limit keys.
  local last = lane and byte(lane, #lane)
  -- The length comes first: elements may be large.
  local plain = lane and last ~= 42 and last ~= 1 and c('LLEN', p .. READY .. lane) <= most
  local els = plain and c('LRANGE', p .. READY .. lane, 0, -1)
  -- An empty element was cancelled or deleted.
  for i = 1, plain and #els or 0 do plain = plain and els[i] ~= '' end
  local first = plain and #els > 0 and c('HGET', p .. FIRST_PLACES, lane)
  -- A token that has a lease already: this call is a repetition.
  if first and not c('HGET', p .. TOKENS, ARGV[3]) then
    local now, count, seq = clock(ARGV[1]), #els, tonumber(first)
    c('DEL', p .. READY .. lane, p .. RING .. priorities[1], p .. PRIORITIES, p .. MARKER)
    c('HDEL', p .. FIRST_PLACES, lane)
    local no = c('HINCRBY', p .. COUNTERS, 'l', 1)
    local header = cmsgpack.pack({ARGV[3], ARGV[4], now, 0, '', 0, lane, seq, count, 0})
    c('ZADD', p .. CLAIMED, 0, lane .. '\0' .. format('%015.0f', seq) .. ':' .. no .. ':0:' .. count)
    c('RPUSH', p .. LEASE .. no, header, unpack(els))
    c('ZADD', p .. LEASES, now + ARGV[5], no)
    by_then(EXPIRING_QUEUES, now + ARGV[5], p)
    c('HSET', p .. TOKENS, ARGV[3], no)
    bump(p, 'r', -count)
    bump(p, 'u', count)
    return {{'', {}, 0}, {0, header, unpack(els)}}
  end
end

