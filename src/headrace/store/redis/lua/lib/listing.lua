-- The list of queues. Needs no other part.

-- A queue without counters is new, or was forgotten: then it gets them back. On a cluster queues are not forgotten, and the list
-- lies elsewhere.
local function list(p)
  if not HOME then return end
  local prefix, name = match(p, '^(.*):{(.*)}:$')
  c('SADD', prefix .. ':queues', name)
  local kept = c('HGET', HOME .. '#s', name)
  if kept then
    c('HSET', p .. 'd', unpack(cmsgpack.unpack(kept)))
    c('HDEL', HOME .. '#s', name)
  end
end
