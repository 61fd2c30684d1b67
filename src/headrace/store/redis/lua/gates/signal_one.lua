-- Signal, before all else: one suspended job waits for the gate, and for nothing else, which is what most signals meet on one server. The
-- functions of the general parts would cost more than these commands do.
-- It changes what the general parts would change. Whatever is not as plain as that, they decide.
if #KEYS == 1 then
  local c, g, id = redis.call, KEYS[1], ARGV[5]
  local waiters = c('ZRANGE', g .. WAITERS .. id, 0, 1)
  -- A need that is met by a signal, the id of the job and the prefix of its queue. Of a closed lane the need is a capital letter.
  local needs, p = string.sub(waiters[1] or '', 1, 1), string.sub(waiters[1] or '', 18)
  local job = #waiters == 1 and (needs == 'd' or needs == 'e') and string.sub(waiters[1], 2, 17)
  local raw = job and c('HGET', p .. BLOCKED, job)
  local size = raw and struct.unpack('>I2', raw)
  -- The kind of its due time, that time, and three words of what it waits for, which begin with the gate.
  local waits = raw and cmsgpack.unpack(string.sub(raw, 3, 2 + size))
  local record = waits and #waits == 5 and waits[3] == id and string.sub(raw, 3 + size)
  local seq, lane, note, at
  if record then seq, lane, note, at = struct.unpack('>dI2c0I4', record) end
  -- A lane that ends with a byte so low shares the place of its tenant in the ring with others. A job without an attempt may have a delay.
  local plain = record and string.byte(lane, #lane) > 2 and struct.unpack('>I4', record, at + math.max(0, note - 1) + 16) > 0
    and c('EXISTS', p .. RINGED_TENANTS, p .. SINGLE_LANES) == 0
  -- It was made for a signal, which has not come, and is no member of another one.
  local gate = plain and c('HMGET', g .. GATE .. id, 'x', 's', 'o', 'd', 'c', 'S', 'h', 't', 'k', 'n')
  if gate and gate[2] and not gate[1] and table.concat(gate, ' ', 2) == '1 0 0 0 1    1' and c('HEXISTS', g .. LINKS, id) == 0 then
    local now = tonumber(ARGV[1] ~= '' and ARGV[1] or nil)
    if not now then
      local t = c('TIME')
      now = t[1] * 1000000 + t[2]
    end
    local kept = string.format('%.0f', now + ARGV[3])
    c('HSET', g .. GATE .. id, 'v', ARGV[4], 'x', ARGV[2], 'u', kept, 'o', 1, 't', 'o', 'k', 's', 'a', string.format('%.0f', now))
    c('ZADD', g .. SIGNALS, kept, id)
    c('DEL', g .. WAITERS .. id)
    c('HDEL', p .. BLOCKED, job)
    c('ZREM', p .. SUSPENDED, job)
    c('HSET', p .. LOOSE, job, record)
    c('ZADD', p .. RETURNED .. lane, seq, job)
    if c('SADD', p .. RETURNED_LANES, lane) == 1 and c('EXISTS', p .. READY .. lane) == 0 then
      local priority = string.match(lane, '^-?%d+')
      if c('RPUSH', p .. RING .. priority, lane) == 1 then c('ZADD', p .. PRIORITIES, -priority, priority) end
    end
    c('HINCRBY', p .. COUNTERS, 'r', 1)
    if c('EXISTS', p .. MARKER) == 0 then c('RPUSH', p .. MARKER, 1) end
    return {'ok', 1, 0}
  end
end
