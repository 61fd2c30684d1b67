-- Jobs by id, as they are stored. Reads only.
-- ARGV: 1 '1' with failures and reports, 2… ids.  Answer: for each id, or for as many of the first as are not too large or
--   too far inside long lanes, nothing, or, with the reports or '' at the end,
--   {'k', record, failures} · {'s', record, failures, run_at} · {'b', record, failures} · {'w', element, '', lane}
--   {'u', record, failures, run_at or '', id and need of each that it waits for} · {'c', element, '', closed lane, id and need}
--   {'r', element, failures, lane, header, 1: asked to stop} · {'d', element, failures, lane, finished at, result record, header}
local p, answer = KEYS[1], {}
local headers, bytes = {}, 1000000
local function head_of(no)
  if not headers[no] then
    local h = lease_header(p, no)
    headers[no] = cmsgpack.pack({h[1], h[2], h[3], h[4], h[5]})
  end
  return headers[no]
end
local reported = ARGV[1] == '1' and c('EXISTS', p .. REPORTS) == 1

-- How many of the ids behind each one are its neighbours, one after the other.
local runs = {[#ARGV] = 0}
for a = #ARGV - 1, 2, -1 do
  local id, other = ARGV[a], ARGV[a + 1]
  local step = sub(id, 1, 14) == sub(other, 1, 14) and read('>I2', other, 15) - read('>I2', id, 15) or 0
  local after = runs[a + 1]
  runs[a] = (step == 1 and max(0, after) + 1) or (step == -1 and min(0, after) - 1) or 0
end

for a = 2, #ARGV do
  local id = ARGV[a]
  following = runs[a]
  local how, what, lane, _, no, index = where(p, id)
  local failures = how and how ~= 'w' and ARGV[1] == '1' and c('HGET', p .. FAILURES, id) or ''
  local row = {}
  if how == 'k' or how == 'b' then
    row = {how, what, failures}
  elseif how == 's' then
    row = {how, what, failures, lane}
  elseif how == 'u' and lane then
    row = {'c', what, '', lane, ARGV[1] == '1' and sub(index, 19, 34) .. sub(index, 1, 1) or ''}
  elseif how == 'u' then
    local size, words = read('>I2', what), ''
    local waits = cmsgpack.unpack(sub(what, 3, 2 + size))
    for w = 3, #waits, 3 do words = words .. waits[w] .. waits[w + 1] end
    row = {how, sub(what, 3 + size), failures, c('ZSCORE', p .. SUSPENDED, id) or '', ARGV[1] == '1' and words or ''}
  elseif how == 'w' then
    row = {how, what, '', lane}
  elseif how == 'l' then
    local at = done_at(p, no, index)
    if at then
      row = {'d', what, failures, lane, format('%.0f', at), c('HGET', p .. RESULTS .. no, index) or '', head_of(no)}
    else
      local header = head_of(no)
      row = {'r', what, failures, lane, header, c('HEXISTS', p .. STOPS, no .. ':' .. index)}
    end
  end
  if how then row[#row + 1] = reported and c('HGET', p .. REPORTS, id) or '' end
  answer[#answer + 1] = row
  for i = 2, #row do bytes = bytes - (type(row[i]) == 'string' and #row[i] or 0) end
  if bytes <= 0 or walked > WALK then break end
end
return answer
