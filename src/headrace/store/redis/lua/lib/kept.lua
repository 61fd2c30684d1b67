-- Whether gates keep a job that has ended, or a gate: see `prune` in store/gates.py. What LINKS holds is described in links.lua.
local keeping, entries = {}, {}
-- On a cluster a gate may be of another queue, whose client asks it. Until it has, the gate keeps its members.
local far_gates, far_asked, far_free = {}, {}, {}

-- A gate that is not sealed may grow for ever, so it keeps its members only if something waits for it, or if it is itself a member.
local function keeps(g, id)
  local known = keeping[id]
  if known == nil then
    local sealed = c('HGET', g .. GATE .. id, 'S')
    known = sealed == '1' or (sealed and (c('EXISTS', g .. WAITERS .. id) == 1 or c('HEXISTS', g .. LINKS, id) == 1)) or false
    keeping[id] = known
  end
  return known
end

local function far_keeps(far, id)
  if far_free[id] then return false end
  if not far_asked[id] then
    far_asked[id] = true
    far_gates[#far_gates + 1] = far
    far_gates[#far_gates + 1] = id
  end
  return true
end

-- The job at a place of a batch, or a gate with the place 0; p: the prefix of its LINKS.
local function is_needed(p, key, ord)
  local known = entries[key]
  if not known then
    local raw, at = c('HGET', p .. LINKS, key) or '', 1
    known = {}
    while at <= #raw do
      local from, to, into, size
      from, to, into, size, at = read('>I2I2c16I2', raw, at)
      if string.find(sub(into, 1, 15), '[^%z]') then known[#known + 1] = {from, to, into, sub(raw, at, at + size - 1)} end
      at = at + size
    end
    entries[key] = known
  end
  for _, one in ipairs(known) do
    if one[1] <= ord and ord <= one[2] then
      if one[4] == '' and keeps(home(p), one[3]) then return true end
      if one[4] ~= '' and far_keeps(one[4], one[3]) then return true end
    end
  end
  return false
end
