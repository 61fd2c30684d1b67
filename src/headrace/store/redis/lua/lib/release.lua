-- Jobs of chains that go because the one before is done. Needs links and rings.

-- Take the jobs off the head of a chain's list that were cancelled or deleted.
local function strip(key)
  repeat
    local els, gaps = c('LRANGE', key, 0, 999), 0
    while els[gaps + 1] == '' do gaps = gaps + 1 end
    if gaps > 0 then c('LTRIM', key, gaps, -1) end
  until gaps < 1000
end

-- The job at this place of a chain goes. It is the first of the list, unless it went before, because the one before is done once more.
local function release_next(p, batch, ord, from, to, lane)
  local first = batch .. pack('>I2', from)
  local key = p .. CHAIN .. first
  local el = c('LPOP', key)
  if el == '' then
    strip(key)
    el = c('LPOP', key)
  end
  if el then
    local high, low = byte(el, 15, 16)
    if high * 256 + low ~= ord then
      c('LPUSH', key, el)
      return
    end
  end
  if not el or ord == to then c('HDEL', p .. CHAINS, first) end
  if not el then return end
  local lanes = nexts[p]
  if not lanes then lanes = {} nexts[p] = lanes end
  local els = lanes[lane]
  if not els then els = {} lanes[lane] = els end
  els[#els + 1] = el
end

-- The lane of the jobs of chains of a lane that were let go. The name of no closed lane has an `s` there.
local function next_name(lane)
  local limits = string.find(lane, '\1', 1, true)
  return (limits and sub(lane, 1, limits - 1) or lane) .. '\2s' .. (limits and sub(lane, limits) or '\2')
end

-- Those that go are at the ends of lanes of their own. Where each is must be noted, because its place says when it was let go.
local function place_nexts()
  for p, lanes in pairs(nexts) do
    local new, total = {}, 0
    for own, els in pairs(lanes) do
      local lane, count, places = next_name(own), #els, {}
      local last = c('HINCRBY', p .. COUNTERS, 's', count)
      local head = tonumber(c('HGET', p .. FIRST_PLACES, lane) or nil)
      if not head then
        head = last - count
        new[#new + 1] = lane
        c('HSET', p .. FIRST_PLACES, lane, head)
      end
      local behind = head + each('RPUSH', p .. READY .. lane, els) - count - 1
      local words = '>c1dc' .. #lane
      for i = 1, count do places[2 * i - 1], places[2 * i] = sub(els[i], 1, 16), pack(words, '@', behind + i, lane) end
      each('HSET', p .. MOVED, places)
      total = total + count
    end
    activate(p, new)
    bump(p, 'r', total)
    bump(p, 'b', -total)
    wake(p)
  end
  nexts = {}
end
