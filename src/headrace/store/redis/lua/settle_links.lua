-- Settle, first part for queues with links.
-- Most ends only count on a gate, and making the functions for all that may follow would cost more than such a settlement does.
moment = clock(ARGV[1])

job_ended = function(id, state) turned(KEYS[1], id, nil, state) end

suspend = function(...)
  local _, suspend_job = settle_waits()
  suspend = suspend_job
  return suspend_job(...)
end

-- Whether no job can follow: what has changed are gates that are not over, and whose members are all done so far.
local function nothing_follows()
  if not HOME then return false end
  for i = 1, #todo do
    local gate = byte(todo[i]) == 103 and gates[sub(todo[i], 2)]
    if not gate or is_over(gate) or gate.d + gate.c > 0 or gate.told ~= '' then return false end
  end
  return true
end

follow_links = function(links)
  local owes, more = false, false
  if nothing_follows() then write_gates() else owes, more = settle_waits()(home(KEYS[1])) end
  return (owes and 4 or 0) + (links and 0 or 8) + (more and 16 or 0)
end
