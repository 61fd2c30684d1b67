-- Ids to look at. Reads only.
-- ARGV: 1 what
--   'all', 'ended' (dead and cancelled): newest first. 2 bound by name from above, 3 at most
--     Answer: for 'all' the entries of batches, 14 bytes and a msgpack list {jobs, lane, from, to, place…}; else ids
--   'counts'.  Answer: {blocked jobs, ready, scheduled, leases, leases in the history, jobs that ended each by itself, of those dead and
--     cancelled ones}
--   'blocked': jobs that wait. 2 '' for all of them, or a closed lane, 3 at most of its runs
--     Answer: {ids of jobs that wait each by itself, runs, of closed lanes and of chains: the first id and the last place of each}
--   'running', 'history': jobs of leases, those that are not settled, or all. 2 an id that theirs are below, or '', 3 from which position of the first
--     lease on, 4… numbers of leases.  Answer: {leases read to the end, position to go on at in the next, id…}
local p, which, below = KEYS[1], ARGV[1], ARGV[2]
if which == 'counts' then
  local d = c('HMGET', p .. COUNTERS, 'r', 'b')
  return {c('HLEN', p .. BLOCKED) + (d[2] or 0), tonumber(d[1] or 0), c('ZCARD', p .. SCHEDULED), c('ZCARD', p .. LEASES),
    c('ZCARD', p .. HISTORY) + c('ZCARD', p .. HISTORY_IN_PARTS), c('ZCARD', p .. NOT_DEAD), c('ZCARD', p .. ENDED_IDS)}
elseif which == 'blocked' then
  local runs = {}
  for _, lane in ipairs(below ~= '' and {below} or c('HKEYS', p .. CLOSED)) do
    for _, run in ipairs(c('ZRANGE', p .. CLOSED_RUNS .. lane, 0, (ARGV[3] or 0) - 1)) do runs[#runs + 1] = run end
  end
  local chains = below == '' and c('HGETALL', p .. CHAINS) or {}
  for i = 1, #chains, 2 do
    local to = read('>I2', chains[i + 1])
    runs[#runs + 1] = sub(chains[i], 1, 14) .. pack('>I2I2', to + 1 - c('LLEN', p .. CHAIN .. chains[i]), to)
  end
  return {below == '' and c('HKEYS', p .. BLOCKED) or {}, runs}
elseif which == 'ended' then
  return c('ZREVRANGEBYLEX', p .. ENDED_IDS, below, '-', 'LIMIT', 0, ARGV[3])
elseif which == 'all' then
  -- The entry of a call of thousands of lanes is large: a few at a time, and no more after the first large ones.
  local entries, size, step = {}, 0, 4
  while #entries < tonumber(ARGV[3]) and size < 200000 do
    local some = c('ZREVRANGEBYLEX', p .. BATCHES, below, '-', 'LIMIT', 0, min(step, ARGV[3] - #entries))
    for i = 1, #some do entries[#entries + 1], size = some[i], size + #some[i] end
    if #some < step then break end
    below, step = '(' .. sub(some[#some], 1, 14), 4 * step
  end
  return entries
end
local answer, at, bytes, looks = {0, 0}, tonumber(ARGV[3]), 1000000, 1000
for a = 4, #ARGV do
  local list = p .. LEASE .. ARGV[a]
  local times = which == 'running' and settled_times(c('GET', p .. SETTLED_LOG .. ARGV[a])) or {}
  local step, over = 8, false
  while not over and bytes > 0 and looks > 0 do
    local els, size = c('LRANGE', list, at + 1, at + step), 0
    for i = 1, #els do
      local id = sub(els[i], 1, 16)
      size = size + #els[i]
      if id ~= '' and not times[at + i - 1] and (below == '' or id < below) then answer[#answer + 1] = id end
    end
    at, over = at + #els, #els < step
    bytes, looks = bytes - size, looks - 3 - #els
    step = max(1, min(8 * step, 512, floor(bytes * #els / max(1, size))))
  end
  if not over then
    answer[2] = at
    return answer
  end
  answer[1], at = answer[1] + 1, 0
end
return answer
