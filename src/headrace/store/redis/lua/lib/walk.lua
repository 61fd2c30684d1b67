-- A walk over the lanes of a queue that have work, in steps: the rings one after the other, then what is parked. Needs no other part.
-- A lane can be met twice, so callers tell lanes apart by their names.

local TURNED = 400  -- entries by which a ring may turn between two steps; a claim takes the turns of 350 lanes at most
local PAGES = 20  -- of parked lanes that one step reads, because a page can be empty
local left, looked = 0, 0  -- what a step may still spend, and the lanes that it has visited
local sure = true  -- false: a ring has turned so far that lanes may have been passed over

-- Where a walk stands: 1 'r' in a ring or 'k' among what is parked, 2 the ring's priority or the cursor of HSCAN ('': there is no
-- more), 3 and 4 how many entries of the ring were read and the last of them, 5 and 6 the same in the ring of the tenant whose
-- entry is the first that waits, 7 1: the walk goes on with the first ring after what is parked; then the entries that wait.
local WAITING = 8

-- The jobs of the lanes of chains (see lib/release.lua) lie in the order in which they were let go. So the oldest of them is looked for,
-- and `sure` says whether it was found.
local function oldest_next(lane, key)
  if not string.find(lane, '\2s', 1, true) then return nil end
  local oldest
  left = left - 4
  local els = c('LRANGE', key, 0, 200)
  if #els > 200 then sure = false end
  for _, el in ipairs(els) do if el ~= '' and (not oldest or sub(el, 26, 33) < sub(oldest, 26, 33)) then oldest = el end end
  return oldest
end

local function first_ring(p, at, behind)
  local priority = c('ZRANGE', p .. PRIORITIES, behind or '-inf', '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
  at[1], at[2], at[3], at[4] = priority and 'r' or 'k', priority or '0', 0, ''
end

-- A walk from some entry on, counted over all rings and what is parked.
local function walk_from(p, skip)
  local at = {'r', '', 0, '', 0, '', 0}
  first_ring(p, at)
  if skip == 0 then return at end
  at[7] = 1
  for _, priority in ipairs(c('ZRANGE', p .. PRIORITIES, 0, -1)) do
    local length = c('LLEN', p .. RING .. priority)
    if skip < length then
      at[2], at[3] = priority, skip
      return at
    end
    skip = skip - length
  end
  -- HSCAN takes any number as its cursor, and visits what lies between it and the end.
  at[1], at[2] = 'k', format('%.0f', skip + 1)
  return at
end

-- Entries leave a list at its head and join it at its end. So what was read last lies where it lay, or before that.
local function found_again(key, read_so_far, last)
  if read_so_far == 0 or last == '' then return read_so_far end
  local from = max(0, read_so_far - 1 - TURNED)
  local some = c('LRANGE', key, from, read_so_far - 1)
  for i = #some, 1, -1 do if some[i] == last then return from + i end end
  sure = false
  return from
end

-- Visit lanes until `left` is spent. Answers where the walk goes on; '': it is over.
local function walk(p, at, visit)
  local next = WAITING
  local function lanes_of(entry) return p .. TENANT_RING .. sub(entry, 1, -3) end
  local function see(lane)
    left, looked = left - 1, looked + 1
    visit(lane)
  end
  if at[1] == 'r' then at[3] = found_again(p .. RING .. at[2], at[3], at[4]) end
  if at[5] > 0 then at[5] = found_again(lanes_of(at[next]), at[5], at[6]) end
  local pages = 0
  while true do
    local entry = at[next]
    if entry and left <= 0 then break end
    if entry and byte(entry, #entry) == 42 then
      local some, visited = c('LRANGE', lanes_of(entry), at[5], at[5] + left), 0
      while visited < #some and left > 0 do
        visited = visited + 1
        see(some[visited])
        at[5], at[6] = at[5] + 1, some[visited]
      end
      if visited == #some then at[5], at[6], next = 0, '', next + 1 end
    elseif entry then
      see(entry)
      next = next + 1
    else
      -- Those that waited are through, and the next ones are read: one more than are looked into, which says whether there are more.
      for i = WAITING, next - 1 do at[i] = nil end
      next = WAITING
      local most = max(1, left + 1)
      if at[1] == 'r' then
        local some = c('LRANGE', p .. RING .. at[2], at[3], at[3] + most - 1)
        for i = 1, #some do at[WAITING + i - 1] = some[i] end
        if #some > 0 then at[3], at[4] = at[3] + #some, some[#some] end
        if #some < most then first_ring(p, at, '(' .. -at[2]) end
      elseif at[2] ~= '' then
        pages = pages + 1
        local page = c('HSCAN', p .. PARKED, at[2], 'COUNT', min(most, 100))
        at[2] = page[1] ~= '0' and page[1] or ''
        for i = 1, #page[2], 2 do at[#at + 1] = page[2][i] end
        if pages > PAGES and at[2] ~= '' then break end
      elseif at[7] == 1 then
        at[7] = 0
        first_ring(p, at)
      else
        return ''
      end
    end
  end
  local rest = {}
  for i = 1, WAITING - 1 do rest[i] = at[i] end
  for i = next, #at do rest[#rest + 1] = at[i] end
  return cmsgpack.pack(rest)
end
