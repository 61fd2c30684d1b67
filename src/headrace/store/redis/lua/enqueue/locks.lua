-- Enqueue, second part: unique locks.
if repeated then
  for q = 1, queues do
    -- The holders of the locks may have changed since the first call, so its answer is read, not made again.
    local then_refused = c('HGET', KEYS[2 * q - 1] .. NOT_STORED, prefix)
    if then_refused then
      then_refused = cmsgpack.unpack(then_refused)
      for i = 1, #then_refused do existing[#existing + 1] = then_refused[i] end
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
  local known = c('HGET', home(KEYS[1]) .. LOCKS, name)
  if not known then return nil end
  local id, p = sub(known, 1, 16), sub(known, 17)
  local how, what, lane, seq, x, index = where(p, id)
  if not how then return nil end
  local state, el, _ = how, what, nil
  if how == 'u' and not lane then
    -- Behind its waits comes the record.
    _, _, _, el = opened(sub(what, 3 + read('>I2', what)))
  elseif how == 'k' then
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

-- A holder that waits for something, or that something waits for.
local function has_links(holder)
  return holder[3] == 'u' or c('HEXISTS', holder[1] .. TOKENS, 'links') == 1
end

local taken, replaced = {}, {}
for _, name in ipairs(order) do
  local one = chosen[name]
  local l = locks[one.last + 5] == 1 and one.last or one.first
  local ord, p = locks[l], KEYS[2 * locks[l + 1] - 1]
  local id, holder = holder_of(name, locks[l + 3], locks[l + 4])
  if id and locks[l + 5] == 0 then
    refused[#refused + 1] = ord
    refused[#refused + 1] = id
    skip[ord] = true
  else
    if id and holder[3] ~= 'l' and holder[3] ~= 'k' then
      if not cancel_linked and has_links(holder) then return {'linked'} end
      replaced[#replaced + 1] = holder
    end
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
-- A job that met a lock is not stored, so its key is not made. A job of the batch that met this key gets the lock's holder instead.
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
  if cancel_linked then
    cancel_linked(p, id, 'replaced', how, what, lane, seq, x)
  else
    cancel_waiting(p, id, now, 'replaced', how, what, lane, seq, x)
  end
end
if #taken > 0 then each('HSET', home(KEYS[1]) .. LOCKS, taken) end
