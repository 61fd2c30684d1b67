-- Store a batch, all or nothing; a batch that is there already changes nothing.
-- ARGV: 1 clock, 2 the batch's 14 bytes, 3 plan, then one element per job, in the plan's order.
-- plan (msgpack): {keyed, locks, segments of the first queue, of the second…}
--   keyed = {ord, key, digest as hex, ttl in µs, keep in ms (0: for ever)…} by ord
--   locks = {ord, number of its queue from 1, task and name, states as letters, µs since the enqueue of the holder (-1:
--     always), 1: replace…} by ord
--   segments = {lane, from, to, due kind, due…}, due kind 0 now, 1 in so many µs, 2 at; a job with a key or a lock is a
--     segment of its own
-- Answer: {'ok', ord, id…} with the jobs that keys had already made or that hold locks (of an ord that comes twice the
--   last counts), or {'conflict', ord, id}.
local now = clock(ARGV[1])
local prefix = ARGV[2]
local plan = cmsgpack.unpack(ARGV[3])
local function own(ord) return prefix .. pack('>I2', ord) end

-- Every check before the first write.
local repeated = false
local keyed, locks, queues = plan[1], plan[2], #plan - 2
for q = 1, queues do
  if batch_entry(KEYS[2 * q - 1], prefix) then repeated = true break end
end
local existing, skip, made, fresh, met = {'ok'}, {}, {}, {}, {}
for k = 1, #keyed, 5 do
  local ord, key, digest = keyed[k], keyed[k + 1], keyed[k + 2]
  local known = made[key] or c('GET', key)
  if known and read('>d', known) <= now then known = false end
  if not known then
    known = pack('>d', now + keyed[k + 3]) .. own(ord) .. digest
    fresh[#fresh + 1] = {key, known, keyed[k + 4], ord}
  elseif sub(known, 9, 24) ~= own(ord) then
    if sub(known, 25) == digest then
      skip[ord] = true
      existing[#existing + 1] = ord
      existing[#existing + 1] = sub(known, 9, 24)
      if made[key] then met[#met + 1] = ord met[#met + 1] = sub(known, 9, 24) end
    elseif not repeated then
      return {'conflict', ord, sub(known, 9, 24)}
    end
  end
  made[key] = known
end
if repeated then
  for q = 1, #locks > 0 and queues or 0 do
    -- Who held the locks then is not who holds them now.
    local refused = c('HGET', KEYS[2 * q - 1] .. 'm', prefix)
    if refused then
      refused = cmsgpack.unpack(refused)
      for i = 1, #refused do existing[#existing + 1] = refused[i] end
      break
    end
  end
  return existing
end

-- Of several places of this batch with one lock the first takes it, or the last if that replaces.
local chosen, order = {}, {}
for l = 1, #locks, 6 do
  local name = locks[l + 2]
  if not skip[locks[l]] then
    local one = chosen[name]
    if not one then
      one = {first = l, places = {}}
      chosen[name] = one
      order[#order + 1] = name
    end
    one.last = l
    one.places[#one.places + 1] = locks[l]
  end
end

-- Whether it holds is read from the job that took it last: its state, and how long ago it was enqueued.
local function holder_of(name, states, within)
  local known = c('HGET', home(KEYS[1]) .. '#l', name)
  if not known then return nil end
  local id, p = sub(known, 1, 16), sub(known, 17)
  local how, what, lane, seq, x, index = where(p, id)
  if not how then return nil end
  local state, el, _ = how, what, nil
  if how == 'k' then
    local record
    state, record = ended_record(what)
    _, _, _, el = opened(record)
  elseif how == 's' or how == 'b' then
    _, _, _, el = opened(what)
    state = how == 's' and 's' or 'w'
  elseif how == 'l' then
    state = done_at(p, x, index) and 'o' or 'l'
  end
  if not string.find(states, state, 1, true) then return nil end
  local high, low = read('>I4I4', el, 26)
  if within >= 0 and high * 4294967296 + low + within <= now then return nil end
  return id, {p, id, how, what, lane, seq, x}
end

local refused, taken, replaced = {}, {}, {}
for _, name in ipairs(order) do
  local one = chosen[name]
  local l = locks[one.last + 5] == 1 and one.last or one.first
  local ord, p = locks[l], KEYS[2 * locks[l + 1] - 1]
  local id, found = holder_of(name, locks[l + 3], locks[l + 4])
  if id and locks[l + 5] == 0 then
    refused[#refused + 1] = ord
    refused[#refused + 1] = id
    skip[ord] = true
  else
    if id and found[3] ~= 'l' and found[3] ~= 'k' then replaced[#replaced + 1] = found end
    taken[#taken + 1] = name
    taken[#taken + 1] = own(ord) .. p
    id = own(ord)
  end
  for _, other in ipairs(one.places) do
    if other ~= ord then
      refused[#refused + 1] = other
      refused[#refused + 1] = id
      skip[other] = true
    end
  end
end
-- A job that met a lock is not stored, so its key is not made, and who met the key inside the batch met the holder.
local instead = {}
for i = 1, #refused, 2 do instead[own(refused[i])] = refused[i + 1] end
for i = 1, #met, 2 do
  if instead[met[i + 1]] then
    refused[#refused + 1] = met[i]
    refused[#refused + 1] = instead[met[i + 1]]
  end
end
for i = 1, #refused do existing[#existing + 1] = refused[i] end

for i = 1, #replaced do
  local p, id, how, what, lane, seq, x = unpack(replaced[i])
  cancel_waiting(p, id, now, 'replaced', how, what, lane, seq, x)
end
if #taken > 0 then each('HSET', home(KEYS[1]) .. '#l', taken) end

for i = 1, #fresh do
  local key, value, keep, ord = unpack(fresh[i])
  if not skip[ord] then
    if keep > 0 then c('SET', key, value, 'PX', keep) else c('SET', key, value) end
  end
end

local at = 4
for q = 1, queues do
  local p, segments = KEYS[2 * q - 1], plan[q + 2]
  local counted = c('HMGET', p .. 'd', 'e', 'n')
  local total, delays = tonumber(counted[1] or 0), tonumber(counted[2] or 0)
  local lanes, known = {}, {}
  for s = 1, #segments, 5 do
    if not known[segments[s]] then lanes[#lanes + 1] = segments[s] known[segments[s]] = true end
  end
  local heads = {}
  for a = 1, #lanes, 4000 do
    local found = c('HMGET', p .. 'h', unpack(lanes, a, min(#lanes, a + 3999)))
    for i = 1, #found do heads[lanes[a + i - 1]] = tonumber(found[i] or nil) end
  end
  local returned = c('EXISTS', p .. 'b') == 1
  local entry, new, first, lengths = {0}, {}, {}, {}
  local stored, ready, delayed = 0, 0, 0
  for s = 1, #segments, 5 do
    local lane, from, to, kind, due = segments[s], segments[s + 1], segments[s + 2], segments[s + 3], segments[s + 4]
    local count = to - from + 1
    if not skip[from] then
      local run_at = (kind == 1 and now + due) or (kind == 2 and due) or 0
      if run_at > now then
        -- Between the last job of the lane and the next: the fraction keeps the order among those that are put off.
        local head = heads[lane]
        local base = (head and head + (lengths[lane] or c('LLEN', p .. 'L:' .. lane)) or total) - 1
        local scores, records = {}, {}
        for i = 0, count - 1 do
          local id = own(from + i)
          scores[2 * i + 1], scores[2 * i + 2] = run_at, id
          records[2 * i + 1] = id
          records[2 * i + 2] = loose(base + (1 + (delays + delayed + i) % 1048575) / 1048576, lane, nil, ARGV[at + i])
        end
        each('ZADD', p .. 'D', scores)
        each('HSET', p .. 'E', records)
        delayed = delayed + count
        local e = #entry
        entry[e + 1], entry[e + 2], entry[e + 3], entry[e + 4] = lane, from, to, -1
      else
        local length
        for a = 0, count - 1, 4000 do
          length = c('RPUSH', p .. 'L:' .. lane, unpack(ARGV, at + a, at + min(count, a + 4000) - 1))
        end
        lengths[lane] = length
        local head = heads[lane]
        if not head then
          -- The list begins anew: its places follow on all that this queue ever gave out.
          head = total
          heads[lane] = head
          first[#first + 1], first[#first + 2] = lane, head
          if not (returned and c('SISMEMBER', p .. 'b', lane) == 1) then new[#new + 1] = lane end
        end
        ready = ready + count
        local seq, e = head + length - count, #entry
        if e > 1 and entry[e - 3] == lane and entry[e - 1] == from - 1 and entry[e] >= 0
          and entry[e] + from - entry[e - 2] == seq then
          entry[e - 1] = to
        else
          entry[e + 1], entry[e + 2], entry[e + 3], entry[e + 4] = lane, from, to, seq
        end
      end
      stored = stored + count
    end
    at = at + count
  end
  if stored > 0 then
    if #first > 0 then each('HSET', p .. 'h', first) end
    activate(p, new)
    entry[1] = stored
    c('ZADD', p .. 'X', 0, prefix .. cmsgpack.pack(entry))
    if #refused > 0 then c('HSET', p .. 'm', prefix, cmsgpack.pack(refused)) end
    bump(p, 'e', stored)
    bump(p, 'n', delayed)
    if ready > 0 then bump(p, 'r', ready) wake(p) end
  end
end
return existing
