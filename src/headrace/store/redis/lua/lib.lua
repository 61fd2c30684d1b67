-- The head of every script: time, counters, hints, pauses. Functions are made anew at every call, so what only some scripts
-- need is in the parts under `lib/`, and `scripts.py` says which script includes which part.
-- KEYS: for each queue its prefix `hr:{queue}:` (a key that never exists) and its counters `…d`; then, where queues share
-- one server, the home of limits, pauses and unique locks, `hr:{#limits}:`. See keys.py for the layout and for why a key
-- that never exists is named. Everything else a script touches is prefix .. name.
local c = redis.call
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local sub, byte, match, format = string.sub, string.byte, string.match, string.format
local pack, read = struct.pack, struct.unpack

local SUSPECT = 1  -- in an element's flags
local LARGE = 16384  -- bytes of an element that a claim moves without reading it; enqueue/one.lua has the same number

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
  if by ~= 0 then c('HINCRBY', p .. COUNTERS, field, by) end
end

-- A call with more arguments than Lua's stack takes, in parts. Answers the last answer.
local function each(command, key, values)
  local answer
  for a = 1, #values, 4000 do answer = c(command, key, unpack(values, a, min(#values, a + 3999))) end
  return answer
end

-- On one server: something of this queue happens then, or earlier. A job is due (DUE_QUEUES), or a lease expires
-- (EXPIRING_QUEUES). So janitors ask only the queues where there may be something to do.
local function by_then(index, at, p)
  if HOME then c('ZADD', HOME .. index, 'LT', at, p) end
end

-- Janitors shall look earlier than they know of. The marker ends by itself if none is there to take it.
local function wake_janitor()
  if HOME and c('EXISTS', HOME .. DUE_MARKER) == 0 then
    c('RPUSH', HOME .. DUE_MARKER, 1)
    c('PEXPIRE', HOME .. DUE_MARKER, 60000)
  end
end

-- A job of this queue is due then. Only a time that is near, and before all others, is news to janitors.
local function due_by(at, now, p)
  if not HOME then return end
  local first = at - now < 60000000 and c('ZRANGE', HOME .. DUE_QUEUES, 0, 0, 'WITHSCORES')
  by_then(DUE_QUEUES, at, p)
  if first and (not first[2] or at < tonumber(first[2])) then wake_janitor() end
end

local function wake(p)
  if c('EXISTS', p .. MARKER) == 0 then c('RPUSH', p .. MARKER, 1) end
end

-- Since when, until when (nil: until resumed) and by whom; nothing if it is not paused, or no longer.
local function pause_of(record, now)
  if not record then return nil end
  local since, till = read('>dd', record)
  if till >= 0 and till <= now then return nil end
  return since, till >= 0 and till or nil, sub(record, 17)
end
