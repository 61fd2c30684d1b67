-- Gates as they are stored. Reads only.
-- ARGV: ids.  Answer: for each nothing, or {queue, label, tenant, 1: sealed, size, done, dead, cancelled, 1: signalled, made at, changed
--   at, 1: it has a value, the value or ''}
local g, answer = home(KEYS[1]), {}
for a = 1, #ARGV do
  local f = c('HMGET', g .. GATE .. ARGV[a], 'q', 'l', 'w', 'S', 's', 'o', 'd', 'c', 'n', 'm', 'a', 'v', 'h')
  if not f[1] then
    answer[a] = {}
  else
    local sealed = f[4] == '1' and f[13] == ''
    answer[a] = {f[1], f[2], f[3], sealed and '1' or '0', f[5], f[6], f[7], f[8], f[9], f[10], f[11], f[12] and '1' or '0', f[12] or ''}
  end
end
return answer
