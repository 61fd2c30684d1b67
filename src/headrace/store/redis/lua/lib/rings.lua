-- Lanes and rings: whose turn it may be.

-- `priority|tenant` of a lane, or of an entry of a ring.
local function whose_of(lane)
  local cut = string.find(lane, '[\1\2]')
  if cut then return sub(lane, 1, cut - 2) end
  return sub(lane, 1, byte(lane, #lane) == 42 and -3 or -2)
end

local function tenant_of(lane) return match(whose_of(lane), '^-?%d+|(.*)$') end

-- These go to the ends of their rings.
local function into_rings(p, entries)
  local rings, order = {}, {}
  for i = 1, #entries do
    local priority = match(entries[i], '^(-?%d+)|')
    local ring = rings[priority]
    if not ring then ring = {} rings[priority] = ring order[#order + 1] = priority end
    ring[#ring + 1] = entries[i]
  end
  for _, priority in ipairs(order) do
    local ring = rings[priority]
    if each('RPUSH', p .. RING .. priority, ring) == #ring then c('ZADD', p .. PRIORITIES, -priority, priority) end
  end
end

-- These lanes have work and had none, or may be claimed again. A tenant has one place in the ring of its priority: its
-- only lane itself, or `priority|tenant|*` for a ring of lanes of its own. Only lanes that end with \1, because of their limit keys, or with \2,
-- because their jobs waited together, can be several.
local function activate(p, lanes)
  if #lanes == 0 then return end
  local plain = c('EXISTS', p .. RINGED_TENANTS, p .. SINGLE_LANES) == 0
  if plain then for i = 1, #lanes do if byte(lanes[i], #lanes[i]) <= 2 then plain = false break end end end
  if plain then return into_rings(p, lanes) end
  local names, plains = {}, {}
  for i = 1, #lanes do
    names[i] = whose_of(lanes[i])
    plains[i] = names[i] .. '|'
  end
  local returned, subrings = c('EXISTS', p .. RETURNED_LANES) == 1, c('EXISTS', p .. RINGED_TENANTS) == 1
  local entries, mine, fresh = {}, {}, {}
  for a = 1, #lanes, 2000 do
    local z = min(#lanes, a + 1999)
    local singles, heads = c('HMGET', p .. SINGLE_LANES, unpack(names, a, z)), c('HMGET', p .. FIRST_PLACES, unpack(plains, a, z))
    for i = a, z do
      local lane, whose, special = lanes[i], names[i], byte(lanes[i], #lanes[i]) <= 2
      local single = mine[whose] or singles[i - a + 1]
      local joins = single and single ~= lane or (subrings and c('SISMEMBER', p .. RINGED_TENANTS, whose) == 1)
      if special and not joins then
        joins = heads[i - a + 1] or (returned and c('SISMEMBER', p .. RETURNED_LANES, plains[i]) == 1)
      end
      if joins then
        c('RPUSH', p .. TENANT_RING .. whose, lane)
        subrings = true
        if c('SADD', p .. RINGED_TENANTS, whose) == 1 then entries[#entries + 1] = whose .. '|*' end
      else
        entries[#entries + 1] = lane
        if special then
          mine[whose] = lane
          fresh[#fresh + 1] = whose
          fresh[#fresh + 1] = lane
        end
      end
    end
  end
  if #fresh > 0 then each('HSET', p .. SINGLE_LANES, fresh) end
  into_rings(p, entries)
end
