-- Take up to n ready jobs: priorities strictly, queues of one priority in the order given, tenants in turn.
-- First part: what is asked for. Then jobs from one lane, what may not go now, whose turn it is, and the lease.
-- ARGV: 1 clock, 2 n, 3 token, 4 worker, 5 ttl µs, 6 position of the first job,
--   7 '1': other queues, asked by other calls, may have a part of this lease, 8 jobs that it has of this queue already,
--   9 '' or msgpack {passes, weights, tenant}: passes = {lowest priority, highest, jobs, numbers of queues from 0 or none}…,
--   each like a claim of its own; weights by number of the queue, then by tenant; tenant: '1' .. the only one, or '0',
--   10 the bell of a sleeper that this was sent along with: while it is there the sleeper is called off, and nothing is done
-- Answer: {when something opens that was passed over, or '', {numbers of queues with jobs left that may be claimed}, 1: it ended
--   because its jobs are large, the number of a lease whose first elements are empty here, because the client reads them from
--   its list}, then for each queue that gave jobs {its number in KEYS from 0, header, element…}; a repeated call gets what it got.
if ARGV[10] and c('EXISTS', ARGV[10]) == 1 then return false end
local now, total, token = clock(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local offset, had = tonumber(ARGV[6]), tonumber(ARGV[8])
local g = home(KEYS[1])
local queues, answer, opens = {}, {{'', {}}}, nil
for i = 1, #KEYS - 1, 2 do
  local p = KEYS[i]
  local held = c('HGET', p .. TOKENS, token)
  local no = held and match(held, '%d+')
  if no and c('LLEN', p .. LEASE .. no) - 1 > had then
    -- Asked before, the answer was lost: the same again.
    local header, runs, first = lease_header(p, no), {}, 0
    for r = 1, #header do if r < RUNS then runs[r] = header[r] end end
    for r = RUNS, #header, 4 do
      if first >= had then for f = r, r + 3 do runs[#runs + 1] = header[f] end end
      first = first + header[r + 2]
    end
    answer[#answer + 1] = {(i - 1) / 2, cmsgpack.pack(runs), unpack(c('LRANGE', p .. LEASE .. no, had + 1, -1))}
  end
  local since, till = pause_of(c('GET', p .. PAUSED), now)
  if till then opens = min(opens or till, till) end
  if not since then
    -- One command for two sets that most queues do not have.
    local special = c('EXISTS', p .. RETURNED_LANES, p .. LARGE_LANES)
    local returned = special > 0 and c('EXISTS', p .. RETURNED_LANES) or 0
    queues[#queues + 1] = {p = p, number = (i - 1) / 2, held = no, limited = held and match(held, 'l$') and true,
      returned = returned == 1, large = special > returned, out = {(i - 1) / 2, ''}, runs = {}, listed = {}, heads = {}, moved = {},
      gaps = {}, left = {}}
  end
end
if #answer > 1 then return answer end

local n, left, taken, stopped, suspect = total, total, 0, false, false
local budget = 700  -- of looks into lanes and limits: there may be thousands, and cancelled jobs leave long stretches of nothing
local passes, weights, only = {{-100000, 100000, total, {}}}, nil, nil
if ARGV[9] ~= '' then
  local words = cmsgpack.unpack(ARGV[9])
  passes = words[1]
  weights = next(words[2]) and words[2]
  only = byte(words[3]) == 49 and sub(words[3], 2) or nil
end
local some_paused = c('EXISTS', g .. PAUSED_TENANTS) == 1
