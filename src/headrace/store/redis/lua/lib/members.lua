-- Stored jobs and gates become members, and jobs wait for jobs. Needs links, gates and paths.

-- What a job, or a gate, is now: o, d, c, or nil while it has not ended. One that is not stored is cancelled.
local function member_state(p, id)
  if is_gate(id) then
    local gate = gate_at(home(p), id)
    if not gate then return 'c' end
    return gate.told ~= '' and gate.told or nil
  end
  local how, what, _, _, no, index = where(p, id)
  if not how then return 'c' end
  if how == 'k' then return sub(what, 1, 1) end
  return how == 'l' and done_at(p, no, index) and 'o' or nil
end

-- A stored job, or a gate, is a member of a gate from here on; far: the queue of the gate, '': it is at hand.
local function attach(p, member, into, far)
  local known = member_state(p, member)
  if is_gate(member) then
    if gate_at(home(p), member) then add_link(home(p), member, link(0, 0, into, far)) end
  else
    local ord = read('>I2', member, 15)
    if where(p, member) then add_link(p, sub(member, 1, 14), link(ord, ord, into, far)) end
  end
  local o, d, cancelled = known == 'o' and 1 or 0, known == 'd' and 1 or 0, known == 'c' and 1 or 0
  if far ~= '' then
    owe(far, 'm', into, member .. member, 1, o, d, cancelled)
  else
    add_members(home(p), into, member .. member, 1, o, d, cancelled)
  end
end

-- As `await_gate`, also for a job.
local function await(p, ids, target, needs, at, lane)
  await_gate(p, ids, target, needs, at, lane)
  if is_gate(target) or not at_hand(at) then return end
  local batch, ord = sub(target, 1, 14), read('>I2', target, 15)
  -- On a cluster the jobs of one call are stored queue by queue, so a job may be waited for before it is there.
  local comes = not HOME and sub(ids[1], 1, 14) == batch and not batch_entry(at, batch)
  local state = not comes and member_state(at, target)
  if state then todo[#todo + 1] = state .. target end
  -- A dead job may be replayed or deleted yet, and then its followers are looked for again.
  if not state or state == 'd' then add_awaited(at, batch, ord, ord) end
end
