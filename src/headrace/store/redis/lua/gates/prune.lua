-- Drop gates past their time.
-- ARGV: 1 clock, 2 µs to keep those that are over, 3 µs to keep those that are not sealed, 4 and 5 how many to skip of those that are
--   over, and of those that were signalled, because something waits for them, or a gate keeps them; 6… on a cluster: gates of other
--   queues that keep nothing
-- Answer: {1: there is more, those two words to go on with, 1: another queue of a cluster is to be told something, prefix and id of gates
--   of other queues that may keep something…}
local g = home(KEYS[1])
moment = clock(ARGV[1])
local PIECE = 100
local more, dropped, kept = 0, 0, 0
for a = 6, #ARGV do far_free[ARGV[a]] = true end
c('DEL', KEYS[1])  -- as in settle

local function drop_gate(id)
  local f = c('HMGET', g .. GATE .. id, 'l', 'w', 'k')
  if f[3] and f[3] ~= '' then c('ZREM', g .. SETS[f[3]], id) end
  if f[1] and f[1] ~= '' then
    c('ZREM', g .. GROUPS, id)
    c('ZREM', g .. TENANT_GROUPS .. f[2], id)
  end
  c('HDEL', g .. LINKS, id)
  c('UNLINK', g .. GATE .. id, g .. MEMBERS .. id)
  c('HINCRBY', g .. COUNTERS, 'gates', -1)
  dropped = dropped + 1
end

-- Those that something waits for, or that a gate keeps, stay. Answers how many are skipped next time.
local function drop_over(set, by, skip)
  local some = c('ZRANGEBYSCORE', g .. set, '-inf', format('%.0f', by), 'LIMIT', skip, PIECE)
  for _, id in ipairs(some) do
    local needed = is_needed(g, id, 0)
    if needed then kept = kept + 1 end
    if needed or c('EXISTS', g .. WAITERS .. id) == 1 then skip = skip + 1 else drop_gate(id) end
  end
  if #some == PIECE then more = 1 end
  return skip
end

local over = drop_over(OVER_GATES, moment - ARGV[2], tonumber(ARGV[4]))
local signalled = drop_over(SIGNALS, moment, tonumber(ARGV[5]))
local open = c('ZRANGEBYSCORE', g .. UNSEALED_GATES, '-inf', format('%.0f', moment - ARGV[3]), 'LIMIT', 0, PIECE)
for _, id in ipairs(open) do
  drop_gate(id)
  todo[#todo + 1] = 'n' .. id
end
if #open == PIECE then more = 1 end
-- A gate that has gone may have kept others.
if dropped > 0 and kept > 0 then more, over, signalled = 1, 0, 0 end
return {more, over, signalled, finish_links(g) and 1 or 0, unpack(far_gates)}
