-- Settle, before all else: a lease of one job that is done and returned nothing, which is what a worker that gets its jobs one
-- by one mostly settles. Making the functions of the general parts costs more than these commands do.
-- The job may be a member of one gate that is not over then, so that nothing follows from its end.
-- It changes what the general parts would change. Whatever is not as plain as that, they decide, and what is sent again.
if #ARGV == 6 and ARGV[3] == '' and ARGV[4] == '\0\0\0\0' and ARGV[5] == '0' and ARGV[6] == '0' then
  local c, p, token = redis.call, KEYS[1], ARGV[2]
  -- On a cluster there is no third key: gates are with the queue itself.
  local g = KEYS[3] or p
  local held = c('HMGET', p .. TOKENS, token, 'links')
  -- Letters behind the number: other queues have a part of the lease, or its jobs have limit keys.
  local no = held[1] and string.match(held[1], '^%d+$')
  local plain = no and c('EXISTS', p .. SETTLED_LOG .. no, p .. STOPS) == 0 and c('LLEN', p .. LEASE .. no) == 2
  local lease = plain and c('LRANGE', p .. LEASE .. no, 0, 1)
  local links = lease and held[2] and c('HGET', p .. LINKS, string.sub(lease[2], 1, 14))
  local gate, counts, unsealed
  if links then
    -- One entry that is so short is about jobs that are awaited, or members of a gate in this place. Only the latter is stored under that id.
    local from, to, into = struct.unpack('>I2I2c16', links)
    local ord = struct.unpack('>I2', lease[2], 15)
    plain = #links == 22
    if plain and from <= ord and ord <= to then
      gate = into
      counts = c('HMGET', g .. GATE .. gate, 's', 'o', 'd', 'c', 'S', 'h')
      unsealed = counts[1] and (counts[5] == '0' or counts[6] ~= '')
      plain = unsealed or counts[1] and counts[2] + counts[3] + counts[4] + 1 < tonumber(counts[1])
    end
  end
  if lease and plain then
    c('DEL', p)
    local now = tonumber(ARGV[1] ~= '' and ARGV[1] or nil)
    if not now then
      local t = c('TIME')
      now = t[1] * 1000000 + t[2]
    end
    local header, el = cmsgpack.unpack(lease[1]), lease[2]
    local id, lane, seq = string.sub(el, 1, 16), header[7], header[8]
    local attempts, failures, crashes, flags = struct.unpack('>I4I2I2B', el, 17)
    -- A job that waited in a lane of another name ends in its own, see lib/plain.lua.
    local cut = string.find(lane, '\2', 1, true)
    local own = cut and string.sub(lane, 1, cut - 1) or lane
    c('HDEL', p .. MOVED, id)
    c('HSET', p .. ENDED, id, 'o' .. struct.pack('>ddI4', now, -1, 0) .. '\1' .. struct.pack('>d', header[3]) .. header[2]
      .. struct.pack('>dI2c0I4', cut and seq - 2 ^ 49 or seq, #own, own, 0) .. id
      .. struct.pack('>I4I2I2B', attempts + 1, failures, crashes, flags - flags % 2) .. string.sub(el, 26))
    c('ZADD', p .. NOT_DEAD, now, id)
    c('HDEL', p .. TOKENS, token)
    c('ZREM', p .. LEASES, no)
    if c('LPUSH', p .. SPENT_TOKENS, token) > 10000 then c('LTRIM', p .. SPENT_TOKENS, 0, 9999) end
    c('ZREM', p .. CLAIMED, lane .. '\0' .. string.format('%015.0f', seq) .. ':' .. no .. ':0:1')
    c('UNLINK', p .. LEASE .. no)
    c('HINCRBY', p .. COUNTERS, 'u', -1)
    c('HINCRBY', p .. COUNTERS, 'o', 1)
    if gate then
      local at = string.format('%.0f', now)
      c('HSET', g .. GATE .. gate, 'o', counts[2] + 1, 'a', at)
      if unsealed then c('ZADD', g .. UNSEALED_GATES, at, gate) end
    end
    return {1}
  end
end
