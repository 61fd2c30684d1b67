-- Cancel jobs: waiting ones at once, running ones through their worker.
-- ARGV: 1 clock, 2 reason ('1' .. text, or '0'), 3… ids
-- Answer: {one letter per id, or per each of the first where lanes are long: c cancelled, a asked, f finished, u unknown, 1: another
--   queue of a cluster is to be told something}.
local p, now, reason = KEYS[1], clock(ARGV[1]), ARGV[2]
local note = byte(reason) == 49 and sub(reason, 2) or nil
local answer = {}
moment = now
c('DEL', p)  -- as in settle: an operator must be able to make room on a full server
for a = 3, #ARGV do
  local id = ARGV[a]
  local how, what, lane, seq, x, index = where(p, id)
  local letter = 'c'
  if not how then
    letter = 'u'
  elseif how == 'k' then
    letter = 'f'
  elseif how ~= 'l' then
    cancel_any(p, id, note, how, what, lane, seq, x)
  elseif done_at(p, x, index) then
    letter = 'f'
  else
    c('HSET', p .. STOPS, x .. ':' .. index, reason)
    letter = 'a'
  end
  answer[#answer + 1] = letter
  if walked > WALK then break end
end
return {table.concat(answer), finish_links(home(p)) and 1 or 0}
