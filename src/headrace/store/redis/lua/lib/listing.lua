-- The list of queues. Needs no other part.

-- On one server: a queue without counters is new, or was forgotten. Then it gets them back.
local function list(p)
  if not HOME then return end
  local prefix, name = match(p, '^(.*):{(.*)}:$')
  c('SADD', prefix .. ':queues', name)
  local kept = c('HGET', HOME .. FORGOTTEN, name)
  if kept then
    c('HSET', p .. COUNTERS, unpack(cmsgpack.unpack(kept)))
    c('HDEL', HOME .. FORGOTTEN, name)
  end
end

-- On a cluster the list lies elsewhere. A queue that was forgotten, or is being forgotten, takes nothing before its client has
-- listed it again. Answers the mark of such a queue; '': it has none.
local function unlisted(p)
  if HOME then return nil end
  local known = c('HMGET', p .. COUNTERS, 'e', 'g')
  if known[2] then return known[2] end
  return not known[1] and '' or nil
end
