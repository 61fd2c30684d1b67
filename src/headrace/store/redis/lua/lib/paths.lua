-- The way from an id to its job. Needs index, leases and history.

-- Where a job is:
--   'k', record                        ended by itself
--   's', record, run_at                scheduled
--   'b', record                        ready, after it came back
--   'w', element, lane, place, index   ready, in its lane's list
--   'l', element, lane, place, no, index   in a lease's list: running, or done
-- or nil.
local function where(p, id)
  local record = c('HGET', p .. 'k', id)
  if record then return 'k', record end
  record = c('HGET', p .. 'E', id)
  if record then
    local at = c('ZSCORE', p .. 'D', id)
    if at then return 's', record, at end
    return 'b', record
  end
  local lane, seq, no, index
  local moved = c('HGET', p .. 'v', id)
  if moved then
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
    local head = tonumber(c('HGET', p .. 'h', lane) or nil)
    if head and seq >= head then
      local el = c('LINDEX', p .. 'L:' .. lane, seq - head)
      if el and sub(el, 1, 16) == id then return 'w', el, lane, seq, seq - head end
      return nil
    end
    local run = c('ZREVRANGEBYLEX', p .. 'c', '[' .. place(lane, seq) .. ';', '[' .. lane .. '\0', 'LIMIT', 0, 1)[1]
    if not run then return nil end
    local first, count
    first, no, index, count = match(sub(run, #lane + 2), '^(%d+):(%d+):(%d+):(%d+)$')
    if seq >= first + count then return nil end
    index = index + seq - first
  end
  local el = c('LINDEX', p .. 'l:' .. no, index + 1)
  if el and sub(el, 1, 16) == id then return 'l', el, lane, seq, no, index end
  return nil
end

-- When the job at this index of a lease's list was done; nil: it is running.
local logs = {}
local function done_at(p, no, index)
  local key = p .. no
  local known = logs[key]
  if not known then
    known = {log = c('GET', p .. 's:' .. no), live = c('ZSCORE', p .. 'Z', no), done = c('ZSCORE', p .. 'F', no)}
    known.times = settled_times(known.log)
    logs[key] = known
  end
  return known.times[index] or (not known.live and known.done or nil)
end
