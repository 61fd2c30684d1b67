-- Apply settlements by position under a token.
-- ARGV: 1 clock, 2 token, 3 letters: r when this call may have been made before, e to end a part that is settled whole, w when its jobs are
--   large, 4 positions that are plainly done, as pairs
--   from, to of two bytes, 5 results, (position, record)…, settlements of other kinds, (position, kind, due kind, due,
--   failures, crashes, suspect, note, failure, result)… with kind a again, d dead, c cancelled, o done; where a job goes on waiting,
--   its result is msgpack {gates, waits}, see linked.lua.
-- Answer: {0 open, 1 over, 2 settled whole but only a part of a lease that spans queues, positions refused: not of this
--   lease (here)…}, or -1: the token is unknown, all are, or -2: the script that knows of links must do it. With 4 more than these
--   three: another queue of a cluster is to be told something, with 8 more: the queue has no links, with 16 more: promote has to go
--   on with what follows. A part ends when all do, so that the token counts until then.
local FEW = 4
local p, now, token = KEYS[1], clock(ARGV[1]), ARGV[2]
local held, links = unpack(c('HMGET', p .. TOKENS, token, 'links'))
if not held then
  if string.find(ARGV[3], 'r', 1, true) and (c('LPOS', p .. SPENT_TOKENS, token) or c('LPOS', p .. OLDER_TOKENS, token)) then return {1} end
  return -1
end
if links and not job_ended then return -2 end
-- A server that is full refuses what takes memory unless the script has changed something already, and settling must go on.
c('DEL', p)
local no, spans, limited = match(held, '^(%d+)(m?)(l?)$')
local list, log = p .. LEASE .. no, p .. SETTLED_LOG .. no
local total = c('LLEN', list) - 1
local results = tonumber(ARGV[5])
local others = tonumber(ARGV[6 + 2 * results])
local last = #ARGV

-- Units go back to their keys, and what is parked under those may be let go.
local function give_back(freed)
  local g = home(p)
  local keys, waiting = {}, {}
  for key in pairs(freed) do keys[#keys + 1] = key end
  local parked = c('EXISTS', g .. PARKING_KEYS) == 1
  for a = 1, #keys, 2000 do
    local z = min(#keys, a + 1999)
    local held, still, gone = c('HMGET', g .. HELD, unpack(keys, a, z)), {}, {}
    local known = parked and c('SMISMEMBER', g .. PARKING_KEYS, unpack(keys, a, z))
    for i = a, z do
      local units = (tonumber(held[i - a + 1] or 0)) - freed[keys[i]]
      if units > 0 then
        still[#still + 1] = keys[i]
        still[#still + 1] = format('%.0f', units)
      else
        gone[#gone + 1] = keys[i]
      end
      if known and known[i - a + 1] == 1 then waiting[#waiting + 1] = keys[i] end
    end
    if #still > 0 then c('HSET', g .. HELD, unpack(still)) end
    if #gone > 0 then c('HDEL', g .. HELD, unpack(gone)) end
  end
  local open = {}
  for _, key in ipairs(waiting) do
    local rule = rule_of(c('HGET', g .. RULES, key) or c('HGET', g .. RULES, match(key, '^([^:]*)')))
    -- The end of a job does not open a rate, unless it is half open.
    if not rule or rule.concurrency or rule.closed >= 0 then open[#open + 1] = key end
  end
  if #open > 0 then may_open(g, open) end
end

-- What `count` jobs of a lane held, added to `freed`.
local function add_freed(freed, lane, count)
  for _, key in ipairs(keys_of(lane) or {}) do freed[key[2]] = (freed[key[2]] or 0) + count * key[3] end
end

-- When which of these results are over: from then on only that there was one need be known. {index, record}…
local note_results = results > 0 and function(records)
  local due = {}
  for r = 1, #records, 2 do
    local ttl = #records[r + 1] > 8 and read('>d', records[r + 1]) or -1
    if ttl >= 0 then due[ttl] = (due[ttl] or '') .. pack('>I2', records[r]) end
  end
  for ttl, places in pairs(due) do
    local at = format('%.0f', now + ttl)
    local g, field = p .. RESULTS .. no, 'd' .. at
    c('HSET', g, field, (c('HGET', g, field) or '') .. places)
    c('ZADD', p .. RESULT_ENDS, 'LT', at, no)
  end
end

local before = c('GET', log)
if not before and spans == '' and others == 0 and ARGV[4] == pack('>I2I2', 0, total - 1) then
  if c('EXISTS', p .. STOPS) == 1 then
    for i = 0, total - 1 do c('HDEL', p .. STOPS, no .. ':' .. i) end
  end
  if limited ~= '' then
    local header, freed = lease_header(p, no), {}
    for r = RUNS, #header, 4 do add_freed(freed, header[r], header[r + 2]) end
    give_back(freed)
  end
  if total <= FEW and not string.find(ARGV[3], 'w', 1, true) then
    -- A list for a few jobs would cost more than they do, unless they are large: each is kept by itself.
    local kept = {}
    for r = 6, 5 + 2 * results, 2 do
      local record = ARGV[r + 1]
      kept[tonumber(ARGV[r])] = sub(record, 1, 8) .. pack('>I4', #record - 7) .. sub(record, 9)
    end
    local header, els = lease_header(p, no), c('LRANGE', list, 1, -1)
    for i = 1, total do
      local lane, seq = own_place(run_of(header, i - 1))
      local id = sub(els[i], 1, 16)
      c('HDEL', p .. MOVED, id)
      ended(p, id, 'o', now, loose(seq, lane, nil, restated(els[i], 1)), kept[i - 1], header)
    end
    if links then jobs_done(els) end
  else
    -- The whole lease at once: its list is history from here on.
    if results > 0 then
      local kept = {unpack(ARGV, 6, 5 + 2 * results)}
      each('HSET', p .. RESULTS .. no, kept)
      note_results(kept)
    end
    c('ZADD', p .. HISTORY, now, no)
    if links then lease_done(list, total, lease_header(p, no)) end
  end
  end_lease(p, no, token)
  bump(p, 'u', -total)
  bump(p, 'o', total)
  return {1 + (follow_links and follow_links(links) or 0)}
end

local times, settled = settled_times(before)
local header
if spans ~= '' or others > 0 or limited ~= '' then header = lease_header(p, no) end

-- A lease of many lanes has as many runs: walked through once here, not once per job.
local lanes, places, indexes = {}, {}, nil
if header and #header > RUNS + 40 then
  local index = 0
  indexes = {}
  for r = RUNS, #header, 4 do
    for i = 0, header[r + 2] - 1 do
      lanes[index], places[index], indexes[header[r + 3] + i] = header[r], header[r + 1] + i, index
      index = index + 1
    end
  end
end
local function locate(position)
  if spans ~= '' then
    if indexes then return indexes[position] end
    return index_of(header, position)
  end
  return position >= 0 and position < total and position or nil
end
local function lane_and_place(index)
  if indexes then return lanes[index], places[index] end
  return run_of(header, index)
end

local refused, ranges, done = {0}, {}, 0
local function settle(index)
  times[index] = now
  settled = settled + 1
  local m = #ranges
  if m > 0 and ranges[m] == index - 1 then ranges[m] = index else ranges[m + 1], ranges[m + 2] = index, index end
end
local fresh = {}
for at = 1, #ARGV[4], 4 do
  local from, to = read('>I2I2', ARGV[4], at)
  for position = from, to do
    local index = locate(position)
    if not index then
      refused[#refused + 1] = position
    elseif not times[index] then
      settle(index)
      fresh[position] = index
      done = done + 1
    end
  end
end
local kept = {}
for r = 6, 5 + 2 * results, 2 do
  local index = fresh[tonumber(ARGV[r])]
  if index then kept[#kept + 1] = index kept[#kept + 1] = ARGV[r + 1] end
end
if #kept > 0 then
  each('HSET', p .. RESULTS .. no, kept)
  note_results(kept)
end

local stops = c('EXISTS', p .. STOPS) == 1
if stops then for _, index in pairs(fresh) do c('HDEL', p .. STOPS, no .. ':' .. index) end end
if links and #ranges > 0 then
  local els = {}
  for r = 1, #ranges, 2 do
    for _, el in ipairs(c('LRANGE', list, ranges[r] + 1, ranges[r + 1] + 1)) do els[#els + 1] = el end
  end
  jobs_done(els)
end

-- Settlements of other kinds: {index, where its arguments are}…
local chosen, low, high = {}, math.huge, -1
for a = 7 + 2 * results, last, 10 do
  local position = tonumber(ARGV[a])
  local index = locate(position)
  if not index then
    refused[#refused + 1] = position
  elseif not times[index] then
    settle(index)
    chosen[#chosen + 1] = index
    chosen[#chosen + 1] = a
    low, high = min(low, index), max(high, index)
  end
end
-- A call costs more than what it reads: neighbours are read together.
local els = #chosen > 0 and high - low < 2 * #chosen and c('LRANGE', list, low + 1, high + 1) or {}
local back, scores, records, ids, failures = {}, {}, {}, {}, {}
for m = 1, #chosen, 2 do
  local index, a = chosen[m], chosen[m + 1]
  local kind = ARGV[a + 1]
  local el = els[index - low + 1] or c('LINDEX', list, index + 1)
  c('LSET', list, index + 1, '')
  local id = sub(el, 1, 16)
  ids[#ids + 1] = id
  local lane, seq = own_place(lane_and_place(index))
  local note = ARGV[a + 7]
  note = byte(note) == 49 and sub(note, 2) or nil
  el = restated(el, 1, tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), kind == 'a' and ARGV[a + 6] == '1')
  if ARGV[a + 8] ~= '' then
    failures[#failures + 1] = id
    failures[#failures + 1] = ARGV[a + 8]
  end
  local stop = stops and c('HGET', p .. STOPS, no .. ':' .. index)
  if stop then
    c('HDEL', p .. STOPS, no .. ':' .. index)
    if kind == 'a' then kind, note = 'c', nil end
    if kind == 'c' and not note then note = byte(stop) == 49 and sub(stop, 2) or nil end
  end
  if kind == 'a' then
    local due = tonumber(ARGV[a + 3])
    local run_at = (ARGV[a + 2] == '1' and now + due) or (ARGV[a + 2] == '2' and due) or 0
    local record = loose(seq, lane, note, el)
    -- A time that has come already lets it go at once.
    if ARGV[a + 9] == '' or not suspend(id, ARGV[a + 9], record, run_at, ARGV[a + 2] == '0' or run_at > now) then
      records[#records + 1] = id
      records[#records + 1] = record
      if run_at > now then
        scores[#scores + 1] = run_at
        scores[#scores + 1] = id
      else
        back[#back + 1] = {lane, seq, id}
      end
    end
  else
    if kind == 'o' then done = done + 1 end
    local result = ARGV[a + 1] ~= 'a' and ARGV[a + 9] ~= '' and ARGV[a + 9] or nil
    ended(p, id, kind, now, loose(seq, lane, note, el), result, header)
    if links then job_ended(id, kind) end
  end
end
if #ids > 0 then each('HDEL', p .. MOVED, ids) end
remember_failures(p, failures)
if #records > 0 then each('HSET', p .. LOOSE, records) end
if #scores > 0 then
  each('ZADD', p .. SCHEDULED, scores)
  local first = scores[1]
  for s = 3, #scores, 2 do first = min(first, scores[s]) end
  due_by(first, now, p)
end
come_back(p, back)

if limited ~= '' and #ranges > 0 then
  local freed = {}
  for r = 1, #ranges, 2 do
    for index = ranges[r], ranges[r + 1] do add_freed(freed, (lane_and_place(index)), 1) end
  end
  give_back(freed)
end
local count = 0
for r = 1, #ranges, 2 do count = count + ranges[r + 1] - ranges[r] + 1 end
if count > 0 then
  local parts = {pack('>dI2', now, #ranges / 2)}
  for r = 1, #ranges, 2 do parts[#parts + 1] = pack('>I2I2', ranges[r], ranges[r + 1]) end
  c('APPEND', log, table.concat(parts))
  if next(fresh) then
    c('ZADD', p .. HISTORY_IN_PARTS, 'NX', now, no)
    c('ZADD', p .. SETTLED_STEPS, now, no .. ':' .. #(before or ''))
  end
  bump(p, 'u', -count)
  bump(p, 'o', done)
  bump(p, 'f', #failures / 2)
end
if settled == total and spans ~= '' and ARGV[3] ~= 'e' then
  refused[1] = 2
elseif settled == total then
  end_lease(p, no, token)
  refused[1] = 1
end
if follow_links then refused[1] = refused[1] + follow_links(links) end
return refused
