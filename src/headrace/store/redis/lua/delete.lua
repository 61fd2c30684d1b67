-- Forget jobs that are not running.
-- ARGV: 1… ids.  Answer: one digit per id: 1 deleted, 0 not.
local p = KEYS[1]
local answer = {}
for a = 1, #ARGV do
  local id = ARGV[a]
  local how, what, lane, _, x, index = where(p, id)
  local gone = true
  if how == 'k' then
    unended(p, id)
  elseif how == 's' or how == 'b' then
    local _, whose = opened(what)
    if how == 's' then c('ZREM', p .. 'D', id) else leave_back(p, whose, id) end
    c('HDEL', p .. 'E', id)
  elseif how == 'w' then
    leave_list(p, lane, x)
  elseif how == 'l' and done_at(p, x, index) then
    c('LSET', p .. 'l:' .. x, index + 1, '')
    c('HDEL', p .. 'g:' .. x, index)
    c('HDEL', p .. 'v', id)
  else
    gone = false
  end
  if gone then
    c('HDEL', p .. 'e', id)
    c('HDEL', p .. 'j', id)
    -- The batch itself is remembered until the next prune: a repeated call must not bring it back.
    local prefix = sub(id, 1, 14)
    if c('HINCRBY', p .. 'n', prefix, 1) >= batch_entry(p, prefix)[1] then c('SADD', p .. 'nx', prefix) end
  end
  answer[#answer + 1] = gone and '1' or '0'
end
return table.concat(answer)
