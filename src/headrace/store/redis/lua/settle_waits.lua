-- Settle, the part for queues with links that is made only when a job follows or waits.
-- A job that goes on waiting brings msgpack {gates, waits}: gates = {id, queue, 1: sealed, 1: signalled, label, tenant, prefix of the queue…},
--   waits = {gate, need, prefix of its queue or '': it is not stored…}.

-- Make the gates, and block the job if that is `wanted`. Answers whether it waits.
local function suspend_job(id, words, record, run_at, wanted)
  local p, new_gates, waits = KEYS[1], unpack(cmsgpack.unpack(words))
  for n = 1, #new_gates, 7 do
    local at = new_gates[n + 6]
    if at_hand(at) then
      make_gate(home(at), unpack(new_gates, n, n + 5))
    else
      owe(at, 'g', unpack(new_gates, n, n + 5))
    end
  end
  if #waits == 0 or not wanted then return false end
  local known = {0, 0}
  for w = 1, #waits, 3 do
    known[w + 2], known[w + 3], known[w + 4] = waits[w], waits[w + 1], waits[w + 2] ~= '' and waits[w + 2] or p
  end
  c('HSET', p .. BLOCKED, id, blocked(known, record))
  if run_at > 0 then
    c('ZADD', p .. SUSPENDED, run_at, id)
    due_by(run_at, moment, p)
  end
  for w = 3, #known, 3 do await_gate(p, {id}, known[w], known[w + 1], known[w + 2]) end
  return true
end

return finish_links, suspend_job
