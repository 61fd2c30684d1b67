-- What a waiting job waits behind. Reads only.
-- ARGV: 1 id, 2 each count ends here
-- Answer: {before it in its lane, of higher priority, 1: a suspect, who paused the queue (since, name) or ''}, or nothing.
local p, id, limit = KEYS[1], ARGV[1], tonumber(ARGV[2])
local LANES = 1000  -- to look into for higher priorities

-- Jobs among the first n elements of a lane's list. Cancelled ones are found without reading the others.
local function jobs_in(lane, n)
  n = min(n, 4 * limit)
  if n <= 0 then return 0 end
  local gaps = c('LPOS', p .. 'L:' .. lane, '', 'COUNT', 0, 'MAXLEN', n)
  return n - #gaps
end

local how, what, lane, seq, index = where(p, id)
local _
if how ~= 's' and how ~= 'b' and how ~= 'w' then return {} end
local paused = c('GET', p .. 'p') or ''
if how == 's' then
  local _, _, _, el = opened(what)
  return {0, 0, byte(el, 25) % 2, paused}
end

local before, el = 0, what
if how == 'w' then
  before = jobs_in(lane, index) + c('ZCOUNT', p .. 'B:' .. lane, '-inf', '(' .. format('%.17g', seq))
else
  seq, lane, _, el = opened(what)
  local head = tonumber(c('HGET', p .. 'h', lane) or nil)
  if head then before = jobs_in(lane, min(floor(seq) - head + 1, c('LLEN', p .. 'L:' .. lane))) end
  before = before + c('ZRANK', p .. 'B:' .. lane, id)
end

local own = tonumber(match(lane, '^(-?%d+)|'))
local higher, looks = 0, 0
local function look(other)
  looks = looks + 1
  higher = higher + jobs_in(other, c('LLEN', p .. 'L:' .. other)) + c('ZCARD', p .. 'B:' .. other)
end
for _, priority in ipairs(c('ZRANGE', p .. 'P', 0, -1)) do
  if tonumber(priority) <= own or higher >= limit or looks >= LANES then break end
  for _, entry in ipairs(c('LRANGE', p .. 'R:' .. priority, 0, LANES)) do
    if byte(entry, #entry) == 42 then
      for _, other in ipairs(c('LRANGE', p .. 'T:' .. sub(entry, 1, -3), 0, LANES)) do look(other) end
    else
      look(entry)
    end
    if higher >= limit or looks >= LANES then break end
  end
end
return {min(before, limit), min(higher, limit), byte(el, 25) % 2, paused}
