-- Cancel jobs: waiting ones at once, running ones through their worker.
-- ARGV: 1 clock, 2 reason ('1' .. text, or '0'), 3… ids
-- Answer: one letter per id: c cancelled, a asked, f finished, u unknown.
local p, now, reason = KEYS[1], clock(ARGV[1]), ARGV[2]
local note = byte(reason) == 49 and sub(reason, 2) or nil
local answer = {}
for a = 3, #ARGV do
  local id = ARGV[a]
  local how, what, lane, seq, x, index = where(p, id)
  local letter = 'c'
  if not how then
    letter = 'u'
  elseif how == 'k' then
    letter = 'f'
  elseif how == 's' or how == 'b' then
    local at, whose, _, el = opened(what)
    if how == 's' then c('ZREM', p .. 'D', id) else leave_back(p, whose, id) end
    c('HDEL', p .. 'E', id)
    ended(p, id, 'c', now, loose(at, whose, note, restated(el, 0)))
  elseif how == 'w' then
    c('LSET', p .. 'L:' .. lane, x, '')
    bump(p, 'r', -1)
    ended(p, id, 'c', now, loose(seq, lane, note, what))
  elseif done_at(p, x, index) then
    letter = 'f'
  else
    c('HSET', p .. 'q', x .. ':' .. index, reason)
    letter = 'a'
  end
  answer[#answer + 1] = letter
end
return table.concat(answer)
