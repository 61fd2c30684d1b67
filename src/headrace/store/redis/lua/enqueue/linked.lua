-- Enqueue, last part for batches with links: gates and members, then the jobs that wait, then what follows.

-- Runs of the jobs from one to the other that were stored here.
local function stored_parts(from, to)
  local parts, start = {}, nil
  for ord = from, to + 1 do
    local is_stored = ord <= to and not skip[ord] and queues_by_place[ord]
    if is_stored and not start then start = ord end
    if not is_stored and start then parts[#parts + 1] = {start, ord - 1} start = nil end
  end
  return parts
end

for p, words in pairs(blocked_words) do each('HSET', p .. BLOCKED, words) end
make_gates(g, new_gates)
local own_links = {}
for e = 1, #own_edges, 4 do
  local into, far = own_edges[e + 2], own_edges[e + 3]
  for _, part in ipairs(stored_parts(own_edges[e], own_edges[e + 1])) do
    local from, to = part[1], part[2]
    own_links[#own_links + 1] = link(from, to, into, far)
    local edge = own(from) .. own(to)
    if far == '' then add_members(g, into, edge, to - from + 1, 0, 0, 0) else owe(far, 'm', into, edge, to - from + 1, 0, 0, 0) end
  end
end
-- On one server the jobs may be of several queues: an entry that names further jobs does no harm.
for q = 1, #own_links > 0 and queues or 0 do add_links(KEYS[2 * q - 1], prefix, own_links) end
for e = 1, #other_edges, 3 do attach(home_of(other_edges[e]), other_edges[e], other_edges[e + 1], other_edges[e + 2]) end
for _, id in ipairs(seals) do seal(g, id) end
-- They are found from here on.
for q = 1, queues do entries[KEYS[2 * q - 1] .. prefix] = nil end
-- What is of this batch was stored just now and has not ended: one entry says that all of it is awaited.
local first, last = {}, {}
for _, one in ipairs(waiting) do
  local p, ids, target, needs, at, lane = unpack(one)
  if sub(target, 1, 14) == prefix and at_hand(at) then
    await_gate(p, ids, target, needs, at, lane)
    local ord = read('>I2', target, 15)
    first[at], last[at] = min(first[at] or ord, ord), max(last[at] or ord, ord)
  else
    await(p, ids, target, needs, at, lane)
  end
end
for at, ord in pairs(first) do add_awaited(at, prefix, ord, last[at]) end
existing[1] = finish_links(g) and 'owes' or 'ok'
return existing
