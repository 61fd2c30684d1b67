-- Claim, before all else: a queue without ready jobs, or one whose only jobs are a few of one plain lane, which are all taken. They are
-- in its list, or all of them came back, as a job does that was suspended, retried or delayed. An idle worker mostly meets that, and
-- making the functions of the general parts and of the head costs more than these commands do.
-- It changes what the general parts would change. Whatever is not as plain as that, they decide.
if #KEYS <= 3 and ARGV[9] == '' and ARGV[6] == '0' and ARGV[7] ~= '1' and ARGV[8] == '0' then
  local c, p, token, most = redis.call, KEYS[1], ARGV[3], math.min(16, tonumber(ARGV[2]))
  -- On a cluster there is no third key: what concerns the limits of a queue is with the queue itself.
  local home = KEYS[3]
  local g = home or p
  -- Without a bell of its own the caller names a key that never exists.
  local special = c('EXISTS', ARGV[10] or p, p .. PAUSED, p .. RETURNED_LANES, p .. RINGED_TENANTS, p .. ROUNDS, p .. LARGE_LANES,
    g .. OPENINGS, g .. PAUSED_TENANTS)
  local returned = special == 1 and c('EXISTS', p .. RETURNED_LANES) == 1
  local priorities = (special == 0 or returned) and c('ZRANGE', p .. PRIORITIES, 0, 1)
  if special == 0 and #priorities == 0 and not c('HGET', p .. TOKENS, token) then
    c('DEL', p .. MARKER)
    return {{'', {}, 0}}
  end
  local entries = priorities and #priorities == 1 and c('LRANGE', p .. RING .. priorities[1], 0, 1)
  local lane = entries and #entries == 1 and entries[1]
  -- 42 ends a tenant's place for several lanes, 1 a lane with limit keys, 2 one whose jobs waited together.
  local last = lane and string.byte(lane, #lane)
  local counters = lane and last ~= 42 and last > 1 and c('HMGET', p .. COUNTERS, 'l', 'r', 'u')
  -- The number of ready jobs is known before they are read, because they may be large.
  local ready = counters and tonumber(counters[2] or 0)
  local plain = ready and ready <= most
  local no = plain and (counters[1] or 0) + 1
  local els, first
  -- Of jobs that came back: their ids, the runs of neighbours as the header of a lease has them, and where each is noted to be.
  local ids, runs, moved
  if plain and returned then
    els, ids, runs, moved = {}, {}, {}, {}
    local places = c('ZRANGE', p .. RETURNED .. lane, 0, most, 'WITHSCORES')
    plain = ready > 0 and #places == 2 * ready and c('EXISTS', p .. READY .. lane) == 0
    for i = 1, plain and ready or 0 do ids[i] = places[2 * i - 1] end
    local records = plain and c('HMGET', p .. LOOSE, unpack(ids)) or {}
    for i = 1, #records do
      local seq, _, note, at = struct.unpack('>dI2c0I4', records[i])
      local el, r = string.sub(records[i], at + math.max(0, note - 1)), #runs - 3
      els[i] = el
      -- A suspect is claimed alone.
      plain = plain and string.byte(el, 25) % 2 == 0
      if r > 0 and runs[r + 1] + runs[r + 2] == seq then
        runs[r + 2] = runs[r + 2] + 1
      else
        runs[r + 4], runs[r + 5], runs[r + 6], runs[r + 7] = lane, seq, 1, i - 1
      end
      moved[2 * i - 1], moved[2 * i] = ids[i], no .. ':' .. i - 1 .. ':' .. string.format('%.17g', seq) .. ' ' .. lane
    end
  elseif plain then
    els = c('LRANGE', p .. READY .. lane, 0, most)
    -- An empty element was cancelled or deleted.
    plain = #els > 0 and #els <= most
    for i = 1, #els do plain = plain and els[i] ~= '' end
    first = plain and c('HGET', p .. FIRST_PLACES, lane)
    plain = first
  end
  -- A token that has a lease already: this call is a repetition.
  if plain and not c('HGET', p .. TOKENS, token) then
    local now, count = tonumber(ARGV[1] ~= '' and ARGV[1] or nil), #els
    if not now then
      local t = c('TIME')
      now = t[1] * 1000000 + t[2]
    end
    local expiry = now + ARGV[5]
    local header
    c('DEL', p .. (returned and RETURNED or READY) .. lane, p .. RING .. priorities[1], p .. PRIORITIES, p .. MARKER)
    if returned then
      header = cmsgpack.pack({token, ARGV[4], now, 0, '', 0, unpack(runs)})
      c('SREM', p .. RETURNED_LANES, lane)
      c('HDEL', p .. LOOSE, unpack(ids))
      c('HSET', p .. MOVED, unpack(moved))
    else
      local seq = tonumber(first)
      header = cmsgpack.pack({token, ARGV[4], now, 0, '', 0, lane, seq, count, 0})
      c('HDEL', p .. FIRST_PLACES, lane)
      c('ZADD', p .. CLAIMED, 0, lane .. '\0' .. string.format('%015.0f', seq) .. ':' .. no .. ':0:' .. count)
    end
    if last == 2 then c('HDEL', p .. SINGLE_LANES, string.match(lane, '^([^\2]*)|\2')) end
    c('HSET', p .. COUNTERS, 'l', no, 'r', counters[2] - count, 'u', (counters[3] or 0) + count)
    c('RPUSH', p .. LEASE .. no, header, unpack(els))
    c('ZADD', p .. LEASES, expiry, no)
    if home then c('ZADD', home .. EXPIRING_QUEUES, 'LT', expiry, p) end
    c('HSET', p .. TOKENS, token, no)
    return {{'', {}, 0}, {0, header, unpack(els)}}
  end
end
