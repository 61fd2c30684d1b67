-- What running tasks say of their jobs.
-- ARGV: 1 token, 2 lines to keep of a log, then msgpack {position, progress or false, note or false, µs, text, …}…
-- Answer: positions refused, or -1: the token is unknown, all are.
local p, most = KEYS[1], tonumber(ARGV[2])
local held = c('HGET', p .. TOKENS, ARGV[1])
if not held then return -1 end
local no, spans = match(held, '^(%d+)(m?)')
local header = lease_header(p, no)
local total, times = c('LLEN', p .. LEASE .. no) - 1, settled_times(c('GET', p .. SETTLED_LOG .. no))
local refused = {}
for a = 3, #ARGV do
  local report = cmsgpack.unpack(ARGV[a])
  local index = report[1]
  if spans ~= '' then index = index_of(header, index) end
  if not index or index < 0 or index >= total or times[index] then
    refused[#refused + 1] = report[1]
  else
    local id = sub(c('LINDEX', p .. LEASE .. no, index + 1), 1, 16)
    local known = c('HGET', p .. REPORTS, id)
    local before = known and cmsgpack.unpack(known) or {false, false}
    local after = {report[2] or before[1], report[3] or before[2]}
    -- Behind the two: when and what of each line, the last ones.
    local lines = {}
    for i = 3, #before do lines[#lines + 1] = before[i] end
    -- Lines that are the last ones already were said by a call whose answer was lost.
    local known_lines = #lines - (#report - 3)
    local again = known_lines >= 0
    for i = 4, again and #report or 0 do again = again and lines[known_lines + i - 3] == report[i] end
    for i = 4, again and 0 or #report do lines[#lines + 1] = report[i] end
    for i = max(1, #lines - 2 * most + 1), #lines do after[#after + 1] = lines[i] end
    c('HSET', p .. REPORTS, id, cmsgpack.pack(after))
  end
end
return refused
