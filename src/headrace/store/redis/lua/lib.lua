-- The head of every script: time, counters, records, lanes and the way to a job by its id.
-- KEYS: for each queue its prefix `hr:{queue}:` (a key that never exists) and its counters `…d`; then, where queues share
-- one server, the home of limits, pauses and unique locks, `hr:{#limits}:`. See keys.py for the layout and for why a key
-- that never exists is named. Everything else a script touches is prefix .. name.
local c = redis.call
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local sub, byte, match, format = string.sub, string.byte, string.match, string.format
local pack, read = struct.pack, struct.unpack

local SUSPECT = 1  -- in an element's flags

-- Where the limits of a queue are: with those of all the others, or on a cluster with the queue itself.
local HOME = #KEYS % 2 == 1 and KEYS[#KEYS] or nil
local function home(p) return HOME or p end

-- Microseconds: the server's own, or what the test's clock says.
local function clock(given)
  if given ~= '' then return tonumber(given) end
  local t = c('TIME')
  return t[1] * 1000000 + t[2]
end

local function bump(p, field, by)
  if by ~= 0 then c('HINCRBY', p .. 'd', field, by) end
end

-- A call with more arguments than Lua's stack takes, in parts. Answers the last answer.
local function each(command, key, values)
  local answer
  for a = 1, #values, 4000 do answer = c(command, key, unpack(values, a, min(#values, a + 3999))) end
  return answer
end

local function wake(p)
  if c('EXISTS', p .. 'w') == 0 then c('RPUSH', p .. 'w', 1) end
end

-- ── elements and records ────────────────────────────────────────────────────

-- The same job after one more attempt (or none), with other counts. Nil keeps a count.
local function restated(el, attempts, failures, crashes, suspect)
  local attempt, f, k, flags = read('>I4I2I2B', el, 17)
  flags = flags - flags % 2 + (suspect and SUSPECT or 0)
  return sub(el, 1, 16) .. pack('>I4I2I2B', attempt + attempts, min(65535, failures or f), min(65535, crashes or k), flags)
    .. sub(el, 26)
end

-- What a job outside the lists needs: its place for life, what was said of it, and itself.
local function loose(seq, lane, note, el)
  return pack('>dI2c0I4', seq, #lane, lane, note and #note + 1 or 0) .. (note or '') .. el
end

-- seq, lane, note or nil, element
local function opened(record)
  local seq, lane, n, at = read('>dI2c0I4', record)
  if n == 0 then return seq, lane, nil, sub(record, at) end
  return seq, lane, sub(record, at, at + n - 2), sub(record, at + n - 1)
end

-- A job that ended by itself, not as part of a lease that became history. result: µs to live (-1: as long as the
-- job), its length + 1 (0: none), itself.
local NO_RESULT = pack('>dI4', -1, 0)
local function ended(p, id, state, now, record, result)
  c('HSET', p .. 'k', id, state .. pack('>d', now) .. (result or NO_RESULT) .. record)
  if state == 'd' then c('ZADD', p .. 'kd', now, id) else c('ZADD', p .. 'kc', now, id) end
  if state ~= 'o' then c('ZADD', p .. 'ki', 0, id) end
end

-- Its state, and what `loose` made.
local function ended_record(record)
  local result = read('>I4', record, 18)
  return sub(record, 1, 1), sub(record, 22 + max(0, result - 1))
end

local function unended(p, id)
  c('HDEL', p .. 'k', id)
  c('ZREM', p .. 'kd', id)
  c('ZREM', p .. 'kc', id)
  c('ZREM', p .. 'ki', id)
end

local function remember_failure(p, id, failure)
  c('HSET', p .. 'e', id, (c('HGET', p .. 'e', id) or '') .. pack('>I4', #failure) .. failure)
end

-- ── lanes and rings ─────────────────────────────────────────────────────────

-- `priority|tenant` of a lane, or of an entry of a ring.
local function whose_of(lane)
  local cut = string.find(lane, '\1', 1, true)
  if cut then return sub(lane, 1, cut - 2) end
  return sub(lane, 1, byte(lane, #lane) == 42 and -3 or -2)
end

local function tenant_of(lane) return match(whose_of(lane), '^-?%d+|(.*)$') end

-- These go to the ends of their rings.
local function into_rings(p, entries)
  local rings, order = {}, {}
  for i = 1, #entries do
    local priority = match(entries[i], '^(-?%d+)|')
    local ring = rings[priority]
    if not ring then ring = {} rings[priority] = ring order[#order + 1] = priority end
    ring[#ring + 1] = entries[i]
  end
  for _, priority in ipairs(order) do
    local ring = rings[priority]
    if each('RPUSH', p .. 'R:' .. priority, ring) == #ring then c('ZADD', p .. 'P', -priority, priority) end
  end
end

-- These lanes have work and had none, or may be claimed again. A tenant has one place in the ring of its priority: its
-- only lane itself, or `priority|tenant|*` for a ring of lanes of its own. Only lanes with limit keys can be several.
local function activate(p, lanes)
  if #lanes == 0 then return end
  local plain = c('EXISTS', p .. 'S', p .. 's') == 0
  if plain then for i = 1, #lanes do if byte(lanes[i], #lanes[i]) == 1 then plain = false break end end end
  if plain then return into_rings(p, lanes) end
  local names, plains = {}, {}
  for i = 1, #lanes do
    names[i] = whose_of(lanes[i])
    plains[i] = names[i] .. '|'
  end
  local returned, subrings = c('EXISTS', p .. 'b') == 1, c('EXISTS', p .. 'S') == 1
  local entries, mine, fresh = {}, {}, {}
  for a = 1, #lanes, 2000 do
    local z = min(#lanes, a + 1999)
    local singles, heads = c('HMGET', p .. 's', unpack(names, a, z)), c('HMGET', p .. 'h', unpack(plains, a, z))
    for i = a, z do
      local lane, whose, limited = lanes[i], names[i], byte(lanes[i], #lanes[i]) == 1
      local single = mine[whose] or singles[i - a + 1]
      local joins = single and single ~= lane or (subrings and c('SISMEMBER', p .. 'S', whose) == 1)
      if limited and not joins then
        joins = heads[i - a + 1] or (returned and c('SISMEMBER', p .. 'b', plains[i]) == 1)
      end
      if joins then
        c('RPUSH', p .. 'T:' .. whose, lane)
        subrings = true
        if c('SADD', p .. 'S', whose) == 1 then entries[#entries + 1] = whose .. '|*' end
      else
        entries[#entries + 1] = lane
        if limited then
          mine[whose] = lane
          fresh[#fresh + 1] = whose
          fresh[#fresh + 1] = lane
        end
      end
    end
  end
  if #fresh > 0 then each('HSET', p .. 's', fresh) end
  into_rings(p, entries)
end

-- Jobs that come back wait beside their lane's list, by their place for life. jobs: {lane, seq, id}
local function come_back(p, jobs)
  if #jobs == 0 then return end
  local by, order = {}, {}
  for i = 1, #jobs do
    local lane, seq, id = jobs[i][1], jobs[i][2], jobs[i][3]
    local places = by[lane]
    if not places then places = {} by[lane] = places order[#order + 1] = lane end
    places[#places + 1] = seq
    places[#places + 1] = id
  end
  local new = {}
  for _, lane in ipairs(order) do
    each('ZADD', p .. 'B:' .. lane, by[lane])
    if c('SADD', p .. 'b', lane) == 1 and c('EXISTS', p .. 'L:' .. lane) == 0 then new[#new + 1] = lane end
  end
  activate(p, new)
  bump(p, 'r', #jobs)
  wake(p)
end

-- One that came back is wanted elsewhere. Its lane keeps its place in the ring until a claim finds it empty.
local function leave_back(p, lane, id)
  c('ZREM', p .. 'B:' .. lane, id)
  bump(p, 'r', -1)
end

-- A job is taken out of its lane's list: an empty element stays, so that no position moves.
local function leave_list(p, lane, index)
  c('LSET', p .. 'L:' .. lane, index, '')
  c('HINCRBY', p .. 'x', lane, 1)
  bump(p, 'r', -1)
end

-- ── what is held back ───────────────────────────────────────────────────────

-- Since when, until when (nil: until resumed) and by whom; nothing if it is not paused, or no longer.
local function pause_of(record, now)
  if not record then return nil end
  local since, till = read('>dd', record)
  if till >= 0 and till <= now then return nil end
  return since, till >= 0 and till or nil, sub(record, 17)
end

-- What is parked under these keys may be let go: claims try each lane once, as far as the keys then leave room.
-- The score in `#o` is when a key opens, or minus the number of lanes still to be tried.
local function may_open(g, keys)
  local scores = {}
  for i = 1, #keys do
    local parked = c('LLEN', g .. '#k:' .. keys[i])
    if parked > 0 then
      scores[#scores + 1] = -parked
      scores[#scores + 1] = keys[i]
    end
  end
  if #scores == 0 then return end
  each('ZADD', g .. '#o', scores)
  for _, p in ipairs(c('SMEMBERS', g .. '#q')) do wake(p) end
end

-- ── leases ──────────────────────────────────────────────────────────────────
-- A lease's header is the first element of its list: {token, worker, claimed_at, suspect, cause, 1: other queues may have
-- a part of it, runs…}, a run being lane, place of its first job, jobs, position of its first job in the whole lease.
local RUNS = 7

local function lease_header(p, no) return cmsgpack.unpack(c('LINDEX', p .. 'l:' .. no, 0)) end

-- Of the job at an index of this list: its lane, its place in it, its position in the whole lease.
local function run_of(header, index)
  local first = 0
  for r = RUNS, #header, 4 do
    local count = header[r + 2]
    if index < first + count then return header[r], header[r + 1] + index - first, header[r + 3] + index - first end
    first = first + count
  end
end

-- Where in this list a position of the whole lease is; nil: in another queue's.
local function index_of(header, position)
  local first = 0
  for r = RUNS, #header, 4 do
    local from, count = header[r + 3], header[r + 2]
    if position >= from and position < from + count then return first + position - from end
    first = first + count
  end
end

-- When each settled index was settled: the log of a lease that is settled in parts. Answers times and their number.
local function settled_times(log)
  local times, n, at = {}, 0, 1
  while log and at <= #log do
    local time, count
    time, count, at = read('>dI2', log, at)
    for _ = 1, count do
      local from, to
      from, to, at = read('>I2I2', log, at)
      for i = from, to do times[i] = time end
      n = n + to - from + 1
    end
  end
  return times, n
end

local function place(lane, seq) return lane .. '\0' .. format('%015.0f', seq) end

local function forget_runs(p, header, no)
  local gone, index = {}, 0
  for r = RUNS, #header, 4 do
    gone[#gone + 1] = place(header[r], header[r + 1]) .. ':' .. no .. ':' .. index .. ':' .. header[r + 2]
    index = index + header[r + 2]
  end
  each('ZREM', p .. 'c', gone)
end

-- Nor are the steps of its log found by their times.
local function forget_steps(p, no, log)
  local steps, at = {}, 1
  while log and at <= #log do
    steps[#steps + 1] = no .. ':' .. at - 1
    at = at + 10 + 4 * read('>I2', log, at + 8)
  end
  each('ZREM', p .. 'f', steps)
end

-- The token is spent. What is done stays where it is: the lease's list is the history of its jobs.
local function end_lease(p, no, token)
  c('HDEL', p .. 't', token)
  c('ZREM', p .. 'Z', no)
  c('LPUSH', p .. 'y', token)
  c('LTRIM', p .. 'y', 0, 9999)
  if not c('ZSCORE', p .. 'F', no) then
    forget_runs(p, lease_header(p, no), no)
    forget_steps(p, no, c('GET', p .. 's:' .. no))
    c('UNLINK', p .. 'l:' .. no, p .. 'g:' .. no, p .. 's:' .. no)
  end
end

-- ── the way to a job ────────────────────────────────────────────────────────

local entries = {}

-- What the index says of a batch: {jobs, lane, from, to, place…}
local function batch_entry(p, prefix)
  local key = p .. prefix
  local known = entries[key]
  if known == nil then
    local found = c('ZRANGEBYLEX', p .. 'X', '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
    known = found and cmsgpack.unpack(sub(found, 15)) or false
    if known then known.raw = found end
    entries[key] = known
  end
  return known
end

-- Where a job is:
--   'k', record                        ended by itself
--   's', record, run_at                scheduled
--   'b', record                        ready, after it came back
--   'w', element, lane, place, index   ready, in its lane's list
--   'l', element, lane, place, no, index   in a lease's list: running, or done
-- or nil.
local function where(p, id)
  local record = c('HGET', p .. 'k', id)
  if record then return 'k', record end
  record = c('HGET', p .. 'E', id)
  if record then
    local at = c('ZSCORE', p .. 'D', id)
    if at then return 's', record, at end
    return 'b', record
  end
  local lane, seq, no, index
  local moved = c('HGET', p .. 'v', id)
  if moved then
    no, index, seq, lane = match(moved, '^(%d+):(%d+):(%S+) (.*)$')
    index, seq = tonumber(index), tonumber(seq)
  else
    local entry = batch_entry(p, sub(id, 1, 14))
    if not entry then return nil end
    local high, low = byte(id, 15, 16)
    local ord = high * 256 + low
    for s = 2, #entry, 4 do
      if ord >= entry[s + 1] and ord <= entry[s + 2] then
        lane, seq = entry[s], entry[s + 3]
        if seq < 0 then return nil end
        seq = seq + ord - entry[s + 1]
        break
      end
    end
    if not lane then return nil end
    local head = tonumber(c('HGET', p .. 'h', lane) or nil)
    if head and seq >= head then
      local el = c('LINDEX', p .. 'L:' .. lane, seq - head)
      if el and sub(el, 1, 16) == id then return 'w', el, lane, seq, seq - head end
      return nil
    end
    local run = c('ZREVRANGEBYLEX', p .. 'c', '[' .. place(lane, seq) .. ';', '[' .. lane .. '\0', 'LIMIT', 0, 1)[1]
    if not run then return nil end
    local first, count
    first, no, index, count = match(sub(run, #lane + 2), '^(%d+):(%d+):(%d+):(%d+)$')
    if seq >= first + count then return nil end
    index = index + seq - first
  end
  local el = c('LINDEX', p .. 'l:' .. no, index + 1)
  if el and sub(el, 1, 16) == id then return 'l', el, lane, seq, no, index end
  return nil
end

-- When the job at this index of a lease's list was done; nil: it is running.
local logs = {}
local function done_at(p, no, index)
  local key = p .. no
  local known = logs[key]
  if not known then
    known = {log = c('GET', p .. 's:' .. no), live = c('ZSCORE', p .. 'Z', no), done = c('ZSCORE', p .. 'F', no)}
    known.times = settled_times(known.log)
    logs[key] = known
  end
  return known.times[index] or (not known.live and known.done or nil)
end

-- Cancel a job that waits, as `where` has found it.
local function cancel_waiting(p, id, now, note, how, what, lane, seq, index)
  if how == 'w' then
    leave_list(p, lane, index)
    ended(p, id, 'c', now, loose(seq, lane, note, what))
    return
  end
  local at, whose, _, el = opened(what)
  if how == 's' then c('ZREM', p .. 'D', id) else leave_back(p, whose, id) end
  c('HDEL', p .. 'E', id)
  ended(p, id, 'c', now, loose(at, whose, note, restated(el, 0)))
end

-- So many jobs of a batch are gone: with the last one the batch is, too.
local function forget(p, prefix, count)
  local entry = batch_entry(p, prefix)
  if not entry then return end
  if count < entry[1] and c('HINCRBY', p .. 'n', prefix, count) < entry[1] then return end
  c('HDEL', p .. 'n', prefix)
  c('HDEL', p .. 'm', prefix)
  c('ZREM', p .. 'X', entry.raw)
  entries[p .. prefix] = false
end
