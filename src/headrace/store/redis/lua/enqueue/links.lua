-- Enqueue, first part for batches with links: what is given, and whether all of it can be stored.
-- ARGV, the last one: msgpack {gates, own, others, seals, waits, homes, fixed}
--   gates = {id, queue, 1: sealed, 1: signalled, label, tenant…}
--   own = {from, to, gate, queue of the gate or ''…}: jobs of this batch that are members
--   others = {job or gate, gate, queue of the gate or ''…}: stored ones that are
--   seals = {gate…}
--   waits = {job or gate, need, due kind, due…}
--   homes = {job or gate, its queue or '': it is not stored…}: those of waits and others that are not of this batch
--   fixed: 1: another call of the same batch checks the gates
-- Further answers: {'where', id…}: nothing is stored, and homes must name these; {'over', gate}.
local links = cmsgpack.unpack(ARGV[#ARGV])
local new_gates, own_edges, other_edges, seals, waits, fixed = links[1], links[2], links[3], links[4], links[5], links[7] == 1
local g, homes, unknown = home(KEYS[1]), {}, {}
for h = 1, #links[6], 2 do homes[links[6][h]] = links[6][h + 1] end
moment = now

local made_here = {}
for n = 1, #new_gates, 6 do made_here[new_gates[n]] = new_gates[n + 3] == 0 end
local function admits(into, edge)
  if gate_at(g, into) then return takes(g, into, edge) end
  return made_here[into]
end
if not repeated and not fixed then
  for e = 1, #own_edges, 4 do
    if own_edges[e + 3] == '' and not admits(own_edges[e + 2]) then return {'over', own_edges[e + 2]} end
  end
  for e = 1, #other_edges, 3 do
    local member, into = other_edges[e], other_edges[e + 1]
    if other_edges[e + 2] == '' and not admits(into, member .. member) then return {'over', into} end
  end
end

-- The job that stands for one of this batch, because of its key or its lock.
local function stand_in(ord)
  local found
  for i = 2, #existing, 2 do if existing[i] == ord then found = existing[i + 1] end end
  return found
end

-- The queue of a job of this batch. On a cluster it may be one of another script.
local queues_by_place = {}
for q = 1, queues do
  local segments = plan[q + 2]
  for s = 1, #segments, 5 do
    for ord = segments[s + 1], segments[s + 2] do queues_by_place[ord] = KEYS[2 * q - 1] end
  end
end
local function queue_of(ord) return queues_by_place[ord] or homes[own(ord)] or KEYS[1] end

-- The queue of a job or a gate. What is not stored counts as being here, where it is not found.
local function home_of(id)
  if HOME and is_gate(id) then return HOME end
  if sub(id, 1, 14) == prefix then return queue_of(read('>I2', id, 15)) end
  local known = homes[id]
  if known == nil then unknown[#unknown + 1] = id end
  return known and known ~= '' and known or KEYS[1]
end

local function actual(target)
  if sub(target, 1, 14) ~= prefix then return target end
  local ord = read('>I2', target, 15)
  return skip[ord] and stand_in(ord) or target
end

if not repeated then
  for l = 3, #locks, 6 do
    local known = c('HGET', g .. LOCKS, locks[l])
    if known then homes[sub(known, 1, 16)] = sub(known, 17) end
  end
  for e = 1, #other_edges, 3 do home_of(other_edges[e]) end
  for w = 1, #waits, 4 do home_of(actual(waits[w])) end
  if #unknown > 0 then return {'where', unpack(unknown)} end
end

-- A wait that is over already is none: its jobs are ready, or scheduled. Answers the kind of due time of a run, and the due time.
wait_now = function(kind, number)
  local w = 4 * number - 3
  local target, at = actual(waits[w]), nil
  if sub(target, 1, 14) == prefix then return kind, number end
  at = home_of(target)
  if not at_hand(at) then return kind, number end
  local gate = is_gate(target) and gate_at(home(at), target) or alone(not is_gate(target) and member_state(at, target))
  if verdict(waits[w + 1], gate) == 'r' then return waits[w + 2], waits[w + 3] end
  return kind, number
end

local waiting = {}  -- queue, ids, what they wait for, their need and its queue, of each run of jobs that waits
local blocked_words = {}  -- by queue, what BLOCKED is to say

-- A run of jobs waits. records: id and record of each.
block = function(p, number, records)
  local w = 4 * number - 3
  local target, needs = actual(waits[w]), waits[w + 1]
  local at, words, ids = home_of(target), blocked_words[p] or {}, {}
  blocked_words[p] = words
  for r = 1, #records, 2 do
    ids[#ids + 1] = records[r]
    words[#words + 1] = records[r]
    words[#words + 1] = blocked({waits[w + 2], waits[w + 3], target, needs, at}, records[r + 1])
  end
  waiting[#waiting + 1] = {p, ids, target, needs, at}
end

-- A large run of jobs waits as a closed lane. Answers the lane, or nil if one of its name was opened and still has jobs, or is being
-- cancelled. heads: the place of the first job of a lane.
block_lane = function(p, lane, number, from, to, heads)
  local w = 4 * number - 3
  local target, needs = actual(waits[w]), waits[w + 1]
  local name = closed_name(lane, needs, target)
  local one = closed_lane(p, name)
  heads[name] = heads[name] or tonumber(c('HGET', p .. FIRST_PLACES, name) or nil)
  if one and one.says ~= 'w' or not one and heads[name] then return nil end
  if not one then
    one = {needs = needs, says = 'w', first = own(from), target = target, at = home_of(target)}
    write_closed(p, name, one)
    waiting[#waiting + 1] = {p, {one.first}, target, needs, one.at, name}
  end
  c('ZADD', p .. CLOSED_RUNS .. name, 0, own(from) .. pack('>I2', to))
  bump(p, 'b', to - from + 1)
  return name
end

cancel_linked = cancel_any
