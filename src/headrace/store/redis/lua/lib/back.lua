-- Jobs that come back to their lane, or leave it. Needs records, ends and rings.

-- Jobs that come back wait beside their lane's list, by their place for life. jobs: {lane, seq, id}
local function come_back(p, jobs)
  if #jobs == 0 then return end
  local by, order = {}, {}
  for i = 1, #jobs do
    local lane, seq, id = jobs[i][1], jobs[i][2], jobs[i][3]
    local places = by[lane]
    if not places then places = {} by[lane] = places order[#order + 1] = lane end
    places[#places + 1] = seq
    places[#places + 1] = id
  end
  local new = {}
  for _, lane in ipairs(order) do
    each('ZADD', p .. RETURNED .. lane, by[lane])
    if c('SADD', p .. RETURNED_LANES, lane) == 1 and c('EXISTS', p .. READY .. lane) == 0 then new[#new + 1] = lane end
  end
  activate(p, new)
  bump(p, 'r', #jobs)
  wake(p)
end

-- One that came back is wanted elsewhere. Its lane keeps its place in the ring until a claim finds it empty.
local function leave_back(p, lane, id)
  c('ZREM', p .. RETURNED .. lane, id)
  bump(p, 'r', -1)
end

-- A job is taken out of its lane's list: an empty element stays, so that no position moves.
local function leave_list(p, lane, index)
  c('LSET', p .. READY .. lane, index, '')
  c('HINCRBY', p .. HOLES, lane, 1)
  bump(p, 'r', -1)
end

-- Cancel a job that waits, as `where` has found it.
local function cancel_waiting(p, id, now, note, how, what, lane, seq, index)
  if how == 'w' then
    leave_list(p, lane, index)
    -- Of a job of a chain its place was noted.
    if string.find(lane, '\2', 1, true) then c('HDEL', p .. MOVED, id) end
    local own, at = own_place(lane, seq)
    ended(p, id, 'c', now, loose(at, own, note, what))
    return
  end
  local at, whose, _, el = opened(what)
  if how == 's' then c('ZREM', p .. SCHEDULED, id) else leave_back(p, whose, id) end
  c('HDEL', p .. LOOSE, id)
  ended(p, id, 'c', now, loose(at, whose, note, restated(el, 0)))
end
