-- Take up to n ready jobs: priorities strictly, queues of one priority in the order given, tenants in turn.
-- ARGV: 1 clock, 2 n, 3 token, 4 worker, 5 ttl µs, 6 position of the first job, 7 lowest priority to touch or '',
--   8 '1': other queues, asked by other calls, may have a part of this lease, 9 jobs that it has of this queue already
-- Answer: for each queue that gave jobs {its number in KEYS from 0, header, element…}; a repeated call gets what it got.
local now, n, token = clock(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local offset, lowest = tonumber(ARGV[6]), tonumber(ARGV[7])
local had = tonumber(ARGV[9])
local queues, answer = {}, {}
for i = 1, #KEYS, 2 do
  local p = KEYS[i]
  local held = c('HGET', p .. 't', token)
  held = held and match(held, '%d+')
  if held and c('LLEN', p .. 'l:' .. held) - 1 > had then
    -- Asked before, the answer was lost: the same again.
    local header, runs, first = lease_header(p, held), {}, 0
    for r = 1, #header do if r < RUNS then runs[r] = header[r] end end
    for r = RUNS, #header, 4 do
      if first >= had then for f = r, r + 3 do runs[#runs + 1] = header[f] end end
      first = first + header[r + 2]
    end
    answer[#answer + 1] = {(i - 1) / 2, cmsgpack.pack(runs), unpack(c('LRANGE', p .. 'l:' .. held, had + 1, -1))}
  end
  if c('EXISTS', p .. 'p') == 0 then
    queues[#queues + 1] = {p = p, held = held, returned = c('EXISTS', p .. 'b') == 1,
      subrings = c('EXISTS', p .. 'S') == 1, out = {(i - 1) / 2, ''}, runs = {}, listed = {}, heads = {}, moved = {}}
  end
end
if #answer > 0 then return answer end

local left, taken, stopped, suspect = n, 0, false, false
local budget = 700  -- of looks into lanes: there may be thousands, and cancelled jobs leave long stretches of nothing

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

-- Up to `want` from the lane's list, whose first job has place `head`, and none beyond the place `last`. Answers how
-- many; cancelled ones are passed over.
local function from_list(q, lane, head, want, last)
  local key = q.p .. 'L:' .. lane
  local got, full = 0, true
  while got < want and head <= last and full and budget > 0 do
    local asked = min(want - got, last - head + 1)
    local els = c('LPOP', key, asked)
    if not els then full = false break end
    got = got + give_all(q, els, lane, head)
    head, full = head + #els, #els == asked
    budget = budget - 1
  end
  -- False: the list is empty now.
  q.heads[lane] = full and c('EXISTS', key) == 1 and head
  return got
end

-- The same where some jobs came back: by place, whichever side has the next; a suspect only alone.
local function from_both(q, lane, head, want)
  local p, got = q.p, 0
  while want > 0 and not stopped do
    local waiting = c('ZRANGE', p .. 'B:' .. lane, 0, min(want, 200) - 1, 'WITHSCORES')
    if #waiting == 0 then
      c('SREM', p .. 'b', lane)
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
      local records = c('HMGET', p .. 'E', unpack(ids))
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
        c('ZREM', p .. 'B:' .. lane, unpack(ids, 1, gone))
        c('HDEL', p .. 'E', unpack(ids, 1, gone))
        got, want = got + gone, want - gone
      end
    end
  end
  if c('EXISTS', p .. 'B:' .. lane) == 0 then c('SREM', p .. 'b', lane) end
  return got
end

-- The place of the first job in the lane's list; nil: the list is empty.
local function head_of(q, lane, stored)
  local head = q.heads[lane]
  if head == nil then head = tonumber(stored or nil) end
  return head or nil
end

-- Up to `want` from one lane. Answers how many, and whether it has more.
local function draw(q, lane, head, want)
  local before = taken
  if q.returned and c('SISMEMBER', q.p .. 'b', lane) == 1 then
    from_both(q, lane, head, want)
    return taken - before, c('EXISTS', q.p .. 'L:' .. lane, q.p .. 'B:' .. lane) > 0
  end
  if not head then return 0, false end
  from_list(q, lane, head, want, math.huge)
  return taken - before, q.heads[lane] and true or false
end

-- A tenant with several lanes: they share its turn.
local function draw_subring(q, entry, want)
  local whose = sub(entry, 1, -3)
  local key = q.p .. 'T:' .. whose
  local before = taken
  while taken - before < want and not stopped and budget > 0 do
    budget = budget - 1
    local lane = c('LPOP', key)
    if not lane then break end
    local rest = c('LLEN', key)
    local got, more = draw(q, lane, head_of(q, lane, c('HGET', q.p .. 'h', lane)), max(1, ceil((want - taken + before) / (rest + 1))))
    if stopped and got == 0 then c('LPUSH', key, lane) elseif more then c('RPUSH', key, lane) end
  end
  local more = c('EXISTS', key) == 1
  if not more then c('SREM', q.p .. 'S', whose) end
  return taken - before, more
end

-- The ring of one priority. The tenant whose turn was cut short by a full batch is first next time, with what it is owed.
local function draw_priority(q, priority)
  local p = q.p
  local ring = p .. 'R:' .. priority
  local owed = tonumber(c('HGET', p .. 'o', priority) or nil)
  local owed_before = owed
  local quantum = max(1, floor(n / 50))
  while left > 0 and budget > 0 and not stopped do
    local many = min(1000, max(2, ceil(left / quantum)))
    local turns = c('LPOP', ring, many)
    if not turns then
      c('ZREM', p .. 'P', priority)
      owed = nil
      break
    end
    local share = #turns < many and max(quantum, ceil(n / #turns)) or quantum
    local heads = c('HMGET', p .. 'h', unpack(turns))
    local back, front = {}, nil
    for i = 1, #turns do
      if left <= 0 or stopped or budget <= 0 then front = i break end
      budget = budget - 1
      local entry = turns[i]
      local due = (i == 1 and owed) or share
      owed = nil
      local got, more
      if byte(entry, #entry) == 42 then
        got, more = draw_subring(q, entry, min(due, left))
      elseif q.subrings and c('SISMEMBER', p .. 'S', sub(entry, 1, -2)) == 1 then
        -- Lanes with limit keys came since: this one joins them.
        c('RPUSH', p .. 'T:' .. sub(entry, 1, -2), entry)
        got, more = 0, false
      else
        got, more = draw(q, entry, head_of(q, entry, heads[i]), min(due, left))
      end
      if more then
        if (left <= 0 or stopped) and got < due then
          if got > 0 or not stopped then owed = due - got end
          front = i
          break
        end
        back[#back + 1] = entry
      end
    end
    if #back > 0 then c('RPUSH', ring, unpack(back)) end
    if front then
      local rest = {}
      for i = #turns, front, -1 do rest[#rest + 1] = turns[i] end
      c('LPUSH', ring, unpack(rest))
    end
  end
  if left <= 0 and c('EXISTS', ring) == 0 then c('ZREM', p .. 'P', priority) end
  if owed ~= owed_before then
    if owed then c('HSET', p .. 'o', priority, owed) else c('HDEL', p .. 'o', priority) end
  end
end

local function top(q) return tonumber(c('ZRANGE', q.p .. 'P', 0, 0)[1] or nil) end

while left > 0 and not stopped and budget > 0 do
  local best, highest
  for _, q in ipairs(queues) do
    local priority = top(q)
    if priority and priority >= (lowest or priority) and (not highest or priority > highest) then best, highest = q, priority end
  end
  if not best then break end
  draw_priority(best, highest)
end

local giving = 0
for _, q in ipairs(queues) do if #q.out > 2 then giving = giving + 1 end end
for _, q in ipairs(queues) do
  local p, count = q.p, #q.out - 2
  local heads, emptied = {}, {}
  for lane, head in pairs(q.heads) do
    if head then
      heads[#heads + 1] = lane
      heads[#heads + 1] = head
    else
      emptied[#emptied + 1] = lane
    end
  end
  if #heads > 0 then each('HSET', p .. 'h', heads) end
  if #emptied > 0 then each('HDEL', p .. 'h', emptied) end
  if count > 0 then
    local no = q.held or c('HINCRBY', p .. 'd', 'l', 1)
    local header = {token, ARGV[4], now, suspect and 1 or 0, '', (giving > 1 or ARGV[8] == '1') and 1 or 0}
    local index, places = had, {}
    for r = 1, #q.runs, 4 do
      local lane, seq, many = q.runs[r], q.runs[r + 1], q.runs[r + 2]
      header[#header + 1] = lane
      header[#header + 1] = seq
      header[#header + 1] = many
      header[#header + 1] = q.runs[r + 3]
      if q.listed[(r + 3) / 4] then
        places[#places + 1] = 0
        places[#places + 1] = place(lane, seq) .. ':' .. no .. ':' .. index .. ':' .. many
      end
      index = index + many
    end
    if #q.moved > 0 then
      for m = 2, #q.moved, 2 do q.moved[m] = no .. ':' .. q.moved[m] end
      each('HSET', p .. 'v', q.moved)
    end
    each('ZADD', p .. 'c', places)
    local head = cmsgpack.pack(header)
    q.out[2] = head
    if q.held then
      local whole = lease_header(p, no)
      for r = RUNS, #header do whole[#whole + 1] = header[r] end
      c('LSET', p .. 'l:' .. no, 0, cmsgpack.pack(whole))
      c('RPUSH', p .. 'l:' .. no, unpack(q.out, 3))
    else
      c('RPUSH', p .. 'l:' .. no, unpack(q.out, 2))
    end
    c('ZADD', p .. 'Z', now + ARGV[5], no)
    c('HSET', p .. 't', token, header[6] == 1 and no .. 'm' or no)
    bump(p, 'r', -count)
    bump(p, 'u', count)
    answer[#answer + 1] = q.out
  end
  -- Whoever waits next is told of the rest; nobody is told of nothing.
  if not top(q) then c('DEL', p .. 'w') elseif count > 0 or budget <= 0 then wake(p) end
end
return answer
