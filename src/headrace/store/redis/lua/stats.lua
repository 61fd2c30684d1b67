-- The oldest ready job of a queue, by the first jobs of its lanes: one step of a walk over them. Reads only.
-- ARGV: 1 lanes to look into, 2 where the walk goes on ('': it begins)
-- Answer: {where the walk goes on ('': it is over), lanes looked into, enqueue time of the oldest job seen or '', 1: there may be
--   older ones in these lanes, behind many cancelled jobs, or lanes that the walk has passed over}
local p = KEYS[1]
left = tonumber(ARGV[1])
local returned = c('EXISTS', p .. RETURNED_LANES) == 1
local oldest

local function look(el)
  if el and #el > 0 then
    local high, low = read('>I4I4', el, 26)
    local at = high * 4294967296 + low
    oldest = min(oldest or at, at)
  end
end

local function look_at(lane)
  local list = p .. READY .. lane
  local el = oldest_next(lane, list) or c('LINDEX', list, 0)
  for from = 1, 901, 100 do
    if el ~= '' or left <= 0 then break end
    left = left - 2
    local some = c('LRANGE', list, from, from + 99)
    for _, following in ipairs(some) do if following ~= '' then el = following break end end
    -- A lane can consist of places of cancelled jobs alone. Then there is nothing left to be unsure of.
    if el == '' and #some < 100 then el = nil end
  end
  if el == '' then sure = false end
  look(el)
  local first = returned and c('ZRANGE', p .. RETURNED .. lane, 0, 0)[1]
  if first then
    local _, _, _, back = opened(c('HGET', p .. LOOSE, first))
    look(back)
  end
end

local at = ARGV[2] == '' and walk_from(p, 0) or cmsgpack.unpack(ARGV[2])
local goes_on = walk(p, at, look_at)
return {goes_on, looked, oldest and format('%.0f', oldest) or '', sure and 0 or 1}
