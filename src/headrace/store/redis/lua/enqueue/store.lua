-- Enqueue, the part that writes: every check is made.
if repeated then return existing end
for i = 1, #fresh do
  local key, value, keep, ord = unpack(fresh[i])
  if not skip[ord] then
    if keep > 0 then c('SET', key, value, 'PX', keep) else c('SET', key, value) end
  end
end

local at = 4
for q = 1, queues do
  local p, segments = KEYS[2 * q - 1], plan[q + 2]
  local counted = c('HMGET', p .. COUNTERS, 'e', 'n')
  if not counted[1] then
    list(p)
    counted = c('HMGET', p .. COUNTERS, 'e', 'n')
  end
  local total, delays = tonumber(counted[1] or 0), tonumber(counted[2] or 0)
  local lanes, known = {}, {}
  for s = 1, #segments, 5 do
    if not known[segments[s]] then lanes[#lanes + 1] = segments[s] known[segments[s]] = true end
  end
  local heads = {}
  for a = 1, #lanes, 4000 do
    local places = c('HMGET', p .. FIRST_PLACES, unpack(lanes, a, min(#lanes, a + 3999)))
    for i = 1, #places do heads[lanes[a + i - 1]] = tonumber(places[i] or nil) end
  end
  local returned = c('EXISTS', p .. RETURNED_LANES) == 1
  local entry, new, first, lengths, large = {0}, {}, {}, {}, {}
  local stored, ready, delayed = 0, 0, 0
  for s = 1, #segments, 5 do
    local lane, from, to, kind, due = segments[s], segments[s + 1], segments[s + 2], segments[s + 3], segments[s + 4]
    local count = to - from + 1
    if not skip[from] then
      local closed
      if kind == 3 or kind == 4 then
        kind, due = wait_now(kind, due)
        closed = kind == 4 and block_lane(p, lane, due, from, to, heads)
        if kind == 4 and not closed then kind = 3 end
        lane = closed or lane
      end
      local run_at = (kind == 1 and now + due) or (kind == 2 and due) or 0
      if run_at > now or kind == 3 or kind == 5 then
        -- Between the last job of the lane and the next: the fraction keeps the order among those that are put off.
        local head = heads[lane]
        local base = (head and head + (lengths[lane] or c('LLEN', p .. READY .. lane)) or total) - 1
        local scores, records = {}, {}
        for i = 0, kind == 5 and -1 or count - 1 do
          local id = own(from + i)
          scores[2 * i + 1], scores[2 * i + 2] = run_at, id
          records[2 * i + 1] = id
          records[2 * i + 2] = loose(base + (1 + (delays + delayed + i) % 1048575) / 1048576, lane, nil, ARGV[at + i])
        end
        if kind == 5 then
          block_chain(p, lane, from, to, base + (1 + (delays + delayed) % 1048575) / 1048576, at)
        elseif kind == 3 then
          block(p, due, records)
        else
          each('ZADD', p .. SCHEDULED, scores)
          each('HSET', p .. LOOSE, records)
          due_by(run_at, now, p)
        end
        delayed = delayed + count
        local e = #entry
        entry[e + 1], entry[e + 2], entry[e + 3], entry[e + 4] = lane, from, to, kind == 5 and -2 or -1
      else
        local length
        for a = 0, count - 1, 4000 do
          length = c('RPUSH', p .. READY .. lane, unpack(ARGV, at + a, at + min(count, a + 4000) - 1))
        end
        lengths[lane] = length
        if #ARGV[at] >= LARGE or #ARGV[at + count - 1] >= LARGE then large[#large + 1] = lane end
        local head = heads[lane]
        if not head then
          -- The list begins anew: its places follow on all that this queue ever gave out.
          head = total
          heads[lane] = head
          first[#first + 1], first[#first + 2] = lane, head
          if not closed and not (returned and c('SISMEMBER', p .. RETURNED_LANES, lane) == 1) then new[#new + 1] = lane end
        end
        if not closed then ready = ready + count end
        local seq, e = head + length - count, #entry
        if e > 1 and entry[e - 3] == lane and entry[e - 1] == from - 1 and entry[e] >= 0
          and entry[e] + from - entry[e - 2] == seq then
          entry[e - 1] = to
        else
          entry[e + 1], entry[e + 2], entry[e + 3], entry[e + 4] = lane, from, to, seq
        end
      end
      stored = stored + count
    end
    at = at + count
  end
  if stored > 0 then
    if #first > 0 then each('HSET', p .. FIRST_PLACES, first) end
    if #large > 0 then each('SADD', p .. LARGE_LANES, large) end
    activate(p, new)
    entry[1] = stored
    c('ZADD', p .. BATCHES, 0, prefix .. cmsgpack.pack(entry))
    if #refused > 0 then c('HSET', p .. NOT_STORED, prefix, cmsgpack.pack(refused)) end
    bump(p, 'e', stored)
    bump(p, 'n', delayed)
    if ready > 0 then bump(p, 'r', ready) wake(p) end
  end
end
