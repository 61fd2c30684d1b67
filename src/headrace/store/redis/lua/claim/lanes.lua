-- Claim, second part: jobs from one lane, by place.

-- About how many bytes one claim takes, because a script that moves more blocks all clients for long. Lists are read in
-- steps, a few jobs first, to learn their size. The claim ends when the bytes are used up.
local bytes, step = 1500000, 16
-- The same for jobs that it moves without reading them.
local LARGE_BYTES = 4000000

local function spend(els)
  local count = #els
  local size = max(#els[1], #els[count], 1)
  bytes = bytes - count * size
  if bytes <= 0 then budget = 0 end
  step = max(1, min(8 * step, 256, floor(bytes / size)))
end

-- listed: it comes from the list, so the index by lane and place finds it; of the others each is noted by its id.
local function give(q, el, lane, seq, listed)
  local out, runs = q.out, q.runs
  local last = #runs - 3
  out[#out + 1] = el
  if last > 0 and runs[last] == lane and runs[last + 1] + runs[last + 2] == seq
    and runs[last + 3] + runs[last + 2] == offset + taken and q.listed[#q.listed] == listed then
    runs[last + 2] = runs[last + 2] + 1
  else
    runs[last + 4], runs[last + 5], runs[last + 6], runs[last + 7] = lane, seq, 1, offset + taken
    q.listed[#q.listed + 1] = listed
  end
  taken = taken + 1
  left = left - 1
end

-- The same for many that follow each other in the list; '' was cancelled or deleted. Answers how many are jobs.
local function give_all(q, els, lane, seq)
  local count = #els
  for i = 1, count do
    if els[i] == '' then
      local got = 0
      for j = 1, count do
        if els[j] ~= '' then give(q, els[j], lane, seq + j - 1, true) got = got + 1 end
      end
      q.gaps[lane] = (q.gaps[lane] or 0) + count - got
      return got
    end
  end
  give(q, els[1], lane, seq, true)
  local out, runs, last = q.out, q.runs, #q.out - 1
  for i = 2, count do out[last + i] = els[i] end
  runs[#runs - 1] = runs[#runs - 1] + count - 1
  taken, left = taken + count - 1, left - count + 1
  return count
end

-- The mean size of a lane's next jobs, by its first nodes. Nothing if the user may not ask for it.
local function size_of(key)
  local bytes = redis.pcall('MEMORY', 'USAGE', key, 'SAMPLES', 5)
  return type(bytes) == 'number' and bytes / c('LLEN', key)
end

-- The first jobs of a lease, if they are large. SORT copies them from list to list inside the server, and the client reads
-- them from the lease afterwards. A script would copy each of them several times, and the server would log all of them again.
-- Answers how many: none if the user may not sort.
local function move_large(q, lane, head, most, size)
  local key = q.p .. READY .. lane
  q.no = q.no or c('HINCRBY', q.p .. COUNTERS, 'l', 1)
  local list, count = q.p .. LEASE .. q.no, nil
  repeat
    count = redis.pcall('SORT', key, 'BY', 'nosort', 'LIMIT', 0, max(1, min(most, floor(LARGE_BYTES / size))), 'STORE', list)
    if type(count) ~= 'number' then return 0 end
    -- Their own size is exact. Where the lane has jobs of several sizes, it may be far from the mean.
    size = c('MEMORY', 'USAGE', list, 'SAMPLES', 0) / count
  until count == 1 or size * count <= 2 * LARGE_BYTES
  c('LTRIM', key, count, -1)
  for i = 1, count do q.out[2 + i] = '' end
  q.runs, q.listed, q.moved_large = {lane, head, count, 0}, {true}, count
  taken, left, bytes = count, left - count, bytes - count * size
  budget = bytes > 0 and budget - 1 or 0
  return count
end

-- Up to `want` from the lane's list, whose first job has place `head`, and none beyond the place `last`. Answers how
-- many; cancelled ones are passed over.
local function from_list(q, lane, head, want, last)
  local key = q.p .. READY .. lane
  local got, full = 0, true
  local size = q.large and c('SISMEMBER', q.p .. LARGE_LANES, lane) == 1 and size_of(key) or 0
  if size >= LARGE then
    step = max(1, min(step, floor(bytes / size)))
    -- A sleeper that is called off must be able to give back what it was sent. An empty element is seen by reading only.
    if taken + offset == 0 and not q.held and not ARGV[10] and c('HEXISTS', q.p .. HOLES, lane) == 0 then
      got = move_large(q, lane, head, min(want, last - head + 1), size)
      head = head + got
    end
  end
  while got < want and head <= last and full and budget > 0 do
    local asked = min(want - got, last - head + 1, step)
    local els = c('LPOP', key, asked)
    if not els then full = false break end
    got = got + give_all(q, els, lane, head)
    head, full = head + #els, #els == asked
    budget = budget - 1
    spend(els)
  end
  -- False: the list is empty now.
  q.heads[lane] = full and c('EXISTS', key) == 1 and head
  return got
end

-- The same where some jobs came back: by place, whichever side has the next; a suspect only alone.
local function from_both(q, lane, head, want)
  local p, got = q.p, 0
  while want > 0 and not stopped do
    local waiting = c('ZRANGE', p .. RETURNED .. lane, 0, min(want, step) - 1, 'WITHSCORES')
    if #waiting == 0 then
      c('SREM', p .. RETURNED_LANES, lane)
      if head then got = got + from_list(q, lane, head, want, math.huge) end
      return got
    end
    local ids = {}
    for i = 1, #waiting, 2 do
      if head and tonumber(waiting[i + 1]) >= head then break end
      ids[#ids + 1] = waiting[i]
    end
    if #ids == 0 then
      local more = from_list(q, lane, head, want, floor(tonumber(waiting[2])))
      got, want, head = got + more, want - more, q.heads[lane] or nil
      if budget <= 0 then break end
    else
      local records = c('HMGET', p .. LOOSE, unpack(ids))
      local gone = 0
      for i = 1, #ids do
        local seq, _, _, el = opened(records[i])
        if byte(el, 25) % 2 == SUSPECT then
          if offset + taken > 0 then stopped = true break end
          suspect, stopped = true, true
        end
        q.moved[#q.moved + 1] = ids[i]
        q.moved[#q.moved + 1] = had + #q.out - 2 .. ':' .. format('%.17g', seq) .. ' ' .. lane
        give(q, el, lane, seq, false)
        gone = i
        if stopped then break end
      end
      if gone > 0 then
        c('ZREM', p .. RETURNED .. lane, unpack(ids, 1, gone))
        c('HDEL', p .. LOOSE, unpack(ids, 1, gone))
        got, want = got + gone, want - gone
      end
      spend(records)
      if budget <= 0 then break end
    end
  end
  if c('EXISTS', p .. RETURNED .. lane) == 0 then c('SREM', p .. RETURNED_LANES, lane) end
  return got
end

-- The place of the first job in the lane's list; nil: the list is empty.
local function head_of(q, lane, stored)
  local head = q.heads[lane]
  if head == nil then head = tonumber(stored or nil) end
  return head or nil
end

-- Up to `want` from one lane. Answers how many, and whether it has more.
local function draw_any(q, lane, head, want)
  local before = taken
  if q.returned and c('SISMEMBER', q.p .. RETURNED_LANES, lane) == 1 then
    from_both(q, lane, head, want)
    return taken - before, c('EXISTS', q.p .. READY .. lane, q.p .. RETURNED .. lane) > 0
  end
  if not head then return 0, false end
  from_list(q, lane, head, want, math.huge)
  return taken - before, q.heads[lane] and true or false
end
