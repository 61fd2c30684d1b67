-- The oldest ready job of a queue, by the first jobs of its lanes. Reads only.
-- ARGV: 1 lanes to look at
-- Answer: {enqueue time of the oldest ready job seen or '', 1: there are more lanes, or more cancelled jobs before the first one}
local p, left = KEYS[1], tonumber(ARGV[1])
local gaps = 20000  -- places of cancelled jobs to read over
local oldest, more, unsure
local function look(el)
  if el and #el > 0 then
    local high, low = read('>I4I4', el, 26)
    local at = high * 4294967296 + low
    oldest = min(oldest or at, at)
  end
end
local function look_at(lane)
  if left <= 0 then more = true return end
  left = left - 1
  local list = p .. 'L:' .. lane
  local el = c('LINDEX', list, 0)
  for from = 1, 901, 100 do
    if el ~= '' then break end
    if gaps <= 0 then break end
    local some = c('LRANGE', list, from, from + 99)
    for _, following in ipairs(some) do
      gaps = gaps - 1
      if following ~= '' then el = following break end
    end
    -- A lane can consist of places of cancelled jobs alone. Then there is nothing left to be unsure of.
    if el == '' and #some < 100 then el = nil end
  end
  unsure = unsure or el == ''
  look(el)
  local first = c('ZRANGE', p .. 'B:' .. lane, 0, 0)[1]
  if first then
    local _, _, _, back = opened(c('HGET', p .. 'E', first))
    look(back)
  end
end
-- Each list is read one entry further than is looked at, which says whether there are more.
local function look_at_entries(entries)
  for _, entry in ipairs(entries) do
    if more then return end
    if byte(entry, #entry) == 42 then
      for _, lane in ipairs(c('LRANGE', p .. 'T:' .. sub(entry, 1, -3), 0, left)) do look_at(lane) end
    else
      look_at(entry)
    end
  end
end
for _, priority in ipairs(c('ZRANGE', p .. 'P', 0, -1)) do
  if more then break end
  look_at_entries(c('LRANGE', p .. 'R:' .. priority, 0, left))
end
if not more then look_at_entries(c('HRANDFIELD', p .. 'K', left + 1)) end
return {oldest and format('%.0f', oldest) or '', (more or unsure) and 1 or 0}
