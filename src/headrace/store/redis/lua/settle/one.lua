-- Settle, before all else: a lease of one plain job that is done and returned nothing, which is what a worker that gets its
-- jobs one by one mostly settles. Making the functions of the general parts costs more than these commands do.
-- It changes what the general parts would change. Whatever is not as plain as that, they decide.
if #ARGV == 6 and (ARGV[3] == '' or ARGV[3] == 'r') and ARGV[4] == '\0\0\0\0' and ARGV[5] == '0' and ARGV[6] == '0' then
  local c, p, token = redis.call, KEYS[1], ARGV[2]
  local held = c('HMGET', p .. TOKENS, token, 'links')
  -- Letters behind the number: other queues have a part of the lease, or its jobs have limit keys.
  local no = held[1] and not held[2] and string.match(held[1], '^%d+$')
  local plain = no and c('EXISTS', p .. SETTLED_LOG .. no, p .. STOPS) == 0 and c('LLEN', p .. LEASE .. no) == 2
  local lease = plain and c('LRANGE', p .. LEASE .. no, 0, 1)
  local header, el = lease and cmsgpack.unpack(lease[1]), lease and lease[2]
  -- The general part knows the own lane of a job that waited in one of another name.
  if header and not string.find(header[7], '\2', 1, true) then
    c('DEL', p)
    local now = tonumber(ARGV[1] ~= '' and ARGV[1] or nil)
    if not now then
      local t = c('TIME')
      now = t[1] * 1000000 + t[2]
    end
    local id, lane, seq = string.sub(el, 1, 16), header[7], header[8]
    local attempts, failures, crashes, flags = struct.unpack('>I4I2I2B', el, 17)
    c('HDEL', p .. MOVED, id)
    c('HSET', p .. ENDED, id, 'o' .. struct.pack('>ddI4', now, -1, 0) .. '\1' .. struct.pack('>d', header[3]) .. header[2]
      .. struct.pack('>dI2c0I4', seq, #lane, lane, 0) .. string.sub(el, 1, 16)
      .. struct.pack('>I4I2I2B', attempts + 1, failures, crashes, flags - flags % 2) .. string.sub(el, 26))
    c('ZADD', p .. NOT_DEAD, now, id)
    c('HDEL', p .. TOKENS, token)
    c('ZREM', p .. LEASES, no)
    if c('LPUSH', p .. SPENT_TOKENS, token) > 10000 then c('LTRIM', p .. SPENT_TOKENS, 0, 9999) end
    c('ZREM', p .. CLAIMED, lane .. '\0' .. string.format('%015.0f', seq) .. ':' .. no .. ':0:1')
    c('UNLINK', p .. LEASE .. no)
    c('HINCRBY', p .. COUNTERS, 'u', -1)
    c('HINCRBY', p .. COUNTERS, 'o', 1)
    return {1}
  end
end

