-- What hangs together with a gate or a job. Reads only.
-- ARGV: 1 id, 2 bound by name from below, 3 at most
-- Answer: {edges, gates that it counts on, jobs that wait, runs of such jobs in closed lanes: first id and last place, closed lanes of
--   other queues of a cluster: prefix, name…}, or nothing: it is not here.
local p, id, most = KEYS[1], ARGV[1], tonumber(ARGV[3])
local g = home(p)
local own = is_gate(id)
local known
if own then known = gate_at(g, id) and links_of(g, id) else known = where(p, id) and links_of(p, sub(id, 1, 14)) end
if not own and not where(p, id) and c('EXISTS', g .. WAITERS .. id) == 0 then return false end
if own and not gate_at(g, id) and c('EXISTS', g .. WAITERS .. id) == 0 then return false end
local edges, into, waiting, runs, lanes = {}, {}, {}, {}, {}
if own then edges = c('ZRANGEBYLEX', g .. MEMBERS .. id, ARGV[2], '+', 'LIMIT', 0, most) end
local function add(gate, far)
  if #into < most and (far ~= '' or gate_at(g, gate)) then into[#into + 1] = gate end
end
if known then
  local ord = own and 0 or read('>I2', id, 15)
  for _, one in ipairs(known.single[ord] or {}) do add(one[1], one[2]) end
  for _, run in ipairs(known.runs) do if run[1] <= ord and ord <= run[2] then add(run[3], run[4]) end end
end
local behind = not own and sub(id, 1, 14) .. pack('>I2', read('>I2', id, 15) + 1)
if behind and chained(p, behind) then waiting[1] = behind end
for i = 1, 3 do
  for r = 1, 4, 2 do
    for _, one in ipairs(c('ZRANGEBYLEX', g .. WAITERS .. id, RANGES[i][r], RANGES[i][r + 1], 'LIMIT', 0, most)) do
      local _, at, waiter, lane = waiter_of(one)
      if lane == '' then
        waiting[#waiting + 1] = waiter
      elseif at_hand(at) then
        for _, run in ipairs(c('ZRANGE', at .. CLOSED_RUNS .. lane, 0, most - 1)) do runs[#runs + 1] = run end
      else
        lanes[#lanes + 1], lanes[#lanes + 2] = at, lane
      end
    end
  end
end
return {edges, into, waiting, runs, lanes}
