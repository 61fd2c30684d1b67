-- Ids to look at, newest first. Reads only.
-- ARGV: 1 'ended' (dead and cancelled), 'running', or 'all'; 2 bound by name from above, or for 'running' an id or '';
--   3 at most
-- Answer: ids for the first two; for 'all' the entries of batches: 14 bytes and a msgpack list {jobs, lane, from, to, place…}
local p, which, below, many = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if which ~= 'running' then
  return c('ZREVRANGEBYLEX', p .. (which == 'all' and 'X' or 'ki'), below, '-', 'LIMIT', 0, many)
end
local ids = {}
for _, no in ipairs(c('ZRANGE', p .. 'Z', 0, -1)) do
  local times = settled_times(c('GET', p .. 's:' .. no))
  local els = c('LRANGE', p .. 'l:' .. no, 1, -1)
  for i = 1, #els do
    local id = sub(els[i], 1, 16)
    if id ~= '' and not times[i - 1] and (below == '' or id < below) then ids[#ids + 1] = id end
  end
end
table.sort(ids, function(a, b) return a > b end)
return {unpack(ids, 1, min(#ids, tonumber(many)))}
