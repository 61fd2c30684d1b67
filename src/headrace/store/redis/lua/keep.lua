-- On a cluster: keep the counters of a queue that leaves. Counters only grow, so older ones do not replace newer ones.
-- KEYS: the home of limits.  ARGV: 1 the queue, 2 its counters, packed, 3 jobs that it ever took
local key = KEYS[1] .. FORGOTTEN
local known = c('HGET', key, ARGV[1])
if known then
  local words = cmsgpack.unpack(known)
  for i = 1, #words, 2 do
    if words[i] == 'e' and tonumber(words[i + 1]) > tonumber(ARGV[3]) then return 0 end
  end
end
c('HSET', key, ARGV[1], ARGV[2])
return 1
