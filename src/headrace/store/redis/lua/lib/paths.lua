-- The way from an id to its job. Needs index, leases and history.

-- Redis walks a list from its nearer end, node by node of about 8 kB: far inside a long lane that costs more than all else.
-- Scripts over many ids count the nodes they pass, and end early after WALK of them, about 5 ms.
local WALK = 150000
local walked = 0
local peeked, window, following = {}, 2, 0

-- The element at an index of a list. `following` says how many of its neighbours the script asks for next (below 0:
-- of those before it): one walk reads them all.
local function element(key, index)
  local known = peeked[key]
  if known and known[index] then return known[index] end
  local from, to = index, index
  if following > 0 then to = index + min(following, window) elseif following < 0 then from = max(0, index + max(following, -window)) end
  local els = c('LRANGE', key, from, to)
  local size = #(els[1] or '')
  if index > 500 then walked = walked + min(index, c('LLEN', key) - index) * min(1, (size + 11) / 8192) end
  if from == to then return els[1] end
  known = {}
  for i = 1, #els do known[from + i - 1] = els[i] end
  peeked[key] = known
  window = max(1, min(4 * window, 200, floor(250000 / max(1, size))))
  return known[index]
end

-- Where a job is:
--   'k', record                        ended by itself
--   's', record, run_at                scheduled
--   'b', record                        ready, after it came back
--   'w', element, lane, place, index   ready, in its lane's list
--   'l', element, lane, place, no, index   in a lease's list: running, or done
-- or nil.
local function placed(p, id)
  local record = c('HGET', p .. ENDED, id)
  if record then return 'k', record end
  record = c('HGET', p .. LOOSE, id)
  if record then
    local at = c('ZSCORE', p .. SCHEDULED, id)
    if at then return 's', record, at end
    return 'b', record
  end
  local lane, seq, no, index
  local moved = c('HGET', p .. MOVED, id)
  if moved and byte(moved) == 64 then
    seq, lane = read('>d', moved, 2), sub(moved, 10)
  elseif moved then
    no, index, seq, lane = match(moved, '^(%d+):(%d+):(%S+) (.*)$')
    index, seq = tonumber(index), tonumber(seq)
  else
    local entry = batch_entry(p, sub(id, 1, 14))
    if not entry then return nil end
    local high, low = byte(id, 15, 16)
    local ord = high * 256 + low
    for s = 2, #entry, 4 do
      if ord >= entry[s + 1] and ord <= entry[s + 2] then
        lane, seq = entry[s], entry[s + 3]
        if seq < 0 then return nil end
        seq = seq + ord - entry[s + 1]
        break
      end
    end
    if not lane then return nil end
  end
  if not no then
    local head = tonumber(c('HGET', p .. FIRST_PLACES, lane) or nil)
    if head and seq >= head then
      local el = element(p .. READY .. lane, seq - head)
      if el and sub(el, 1, 16) == id then return 'w', el, lane, seq, seq - head end
      return nil
    end
    local run = c('ZREVRANGEBYLEX', p .. CLAIMED, '[' .. place(lane, seq) .. ';', '[' .. lane .. '\0', 'LIMIT', 0, 1)[1]
    if not run then return nil end
    local first, count
    first, no, index, count = match(sub(run, #lane + 2), '^(%d+):(%d+):(%d+):(%d+)$')
    if seq >= first + count then return nil end
    index = index + seq - first
  end
  local el = c('LINDEX', p .. LEASE .. no, index + 1)
  if el and sub(el, 1, 16) == id then return 'l', el, lane, seq, no, index end
  return nil
end

-- What is known of a blocked job that is in the list of its chain, as BLOCKED has it of others.
local function chained(p, id)
  local prefix, ord = sub(id, 1, 14), read('>I2', id, 15)
  local entry = batch_entry(p, prefix) or {}
  for s = 2, #entry, 4 do
    if entry[s + 3] == -2 and ord >= entry[s + 1] and ord <= entry[s + 2] then
      local first = prefix .. pack('>I2', entry[s + 1])
      local key = p .. CHAIN .. first
      local index = ord - entry[s + 2] - 1 + c('LLEN', key)
      local el = index >= 0 and element(key, index)
      if not el or el == '' then return nil end
      local place, lane = read('>d', c('HGET', p .. CHAINS, first), 3), entry[s]
      local head = cmsgpack.pack({0, 0, prefix .. pack('>I2', ord - 1), 'd', p})
      return pack('>I2', #head) .. head .. pack('>dI2c0I4', place, #lane, lane, 0) .. el
    end
  end
end

-- The same for blocked jobs:
--   'u', waits and record                    blocked
--   'u', element, lane, place, index, what CLOSED says of the lane   blocked, in a closed lane
local function where(p, id)
  local how, what, lane, seq, x, index = placed(p, id)
  if how == 'w' and string.find(lane, '\2', 1, true) then
    index = c('HGET', p .. CLOSED, lane)
    if index then how = 'u' end
  end
  if how then return how, what, lane, seq, x, index end
  what = c('HGET', p .. BLOCKED, id) or chained(p, id)
  if what then return 'u', what end
end

-- When the job at this index of a lease's list was done; nil: it is running.
local logs = {}
local function done_at(p, no, index)
  local key = p .. no
  local known = logs[key]
  if not known then
    known = {log = c('GET', p .. SETTLED_LOG .. no), live = c('ZSCORE', p .. LEASES, no), done = c('ZSCORE', p .. HISTORY, no)}
    known.times = settled_times(known.log)
    logs[key] = known
  end
  return known.times[index] or (not known.live and known.done or nil)
end
