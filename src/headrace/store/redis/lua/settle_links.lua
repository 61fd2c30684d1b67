-- Settle, first part for queues with links.
-- Most ends only count on a gate, and making the functions for all that may follow would cost more than such a settlement does.
moment = clock(ARGV[1])

job_ended = function(id, state) turned(KEYS[1], id, nil, state) end

-- Jobs of many calls are done. Mostly a call is one chain, and no job of it counts anywhere: then only the next job of the chain is looked for.
jobs_done = function(els)
  local p, batches, at = KEYS[1], {}, {}
  for i = 1, #els do
    local batch = sub(els[i], 1, 14)
    if batch ~= batches[#batches] then batches[#batches + 1] = batch end
    at[i] = #batches
  end
  local raws = c('HMGET', p .. LINKS, unpack(batches))
  for i = 1, #els do
    local raw, batch = raws[at[i]], batches[at[i]]
    if raw then
      local from, to, into, size, behind = read('>I2I2c16I2', raw)
      local high, low = byte(els[i], 15, 16)
      local ord = high * 256 + low
      if into ~= CHAINED or #raw > behind + size or effort <= 0 then
        linked[p .. batch] = linked[p .. batch] or read_links(raw)
        turned_run(p, batch, ord, ord, nil, 'o')
      elseif from <= ord + 1 and ord < to then
        effort = effort - NEXT
        release_next(p, batch, ord + 1, from, to, sub(raw, behind + 8))
      end
    end
  end
end

-- All jobs of a lease are done. In a run, which has consecutive places of one lane, the jobs of one batch lie side by side. They
-- are counted together, and found by a search for the last of them: to read all jobs of a large lease would cost more than the rest
-- of the settlement. Leases of many short runs are read.
lease_done = function(key, total, header)
  local function id_at(index) return sub(c('LINDEX', key, index), 1, 16) end
  local index, pieces = 1, #header < RUNS + 32 and 0 or 8
  for r = RUNS, #header, 4 do
    local behind = index + header[r + 2]
    while index < behind and pieces < 8 do
      local id = id_at(index)
      local batch, ord = sub(id, 1, 14), read('>I2', id, 15)
      local function is_near(other)
        local place = ord + other - index
        return place < 65536 and id_at(other) == batch .. pack('>I2', place)
      end
      local last, beyond = index, behind
      if is_near(behind - 1) then last = behind - 1 end
      while last < behind - 1 and beyond - last > 1 do
        local middle = floor((last + beyond) / 2)
        if is_near(middle) then last = middle else beyond = middle end
      end
      turned_run(KEYS[1], batch, ord, ord + last - index, nil, 'o')
      -- Two jobs that are alone are the jobs of chains, or others that are.
      pieces = pieces + (last == index and 4 or 1)
      index = last + 1
    end
  end
  if index <= total then jobs_done(c('LRANGE', key, index, -1)) end
end

suspend = function(...)
  local _, suspend_job = settle_waits()
  suspend = suspend_job
  return suspend_job(...)
end

-- Whether no job can follow but those of chains: what has changed are gates that are not over, and whose members are all done so far.
local function nothing_follows()
  if not HOME then return false end
  for i = 1, #todo do
    local gate = type(todo[i]) == 'string' and byte(todo[i]) == 103 and gates[sub(todo[i], 2)]
    if not gate or is_over(gate) or gate.d + gate.c > 0 or gate.told ~= '' then return false end
  end
  return true
end

follow_links = function(links)
  local owes, more = false, false
  if nothing_follows() then
    write_gates()
    place_nexts()
  else
    owes, more = settle_waits()(home(KEYS[1]))
  end
  return (owes and 4 or 0) + (links and 0 or 8) + (more and 16 or 0)
end
