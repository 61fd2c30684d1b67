-- On a cluster: another queue was told the words up to this one.
-- ARGV: 1 its prefix, 2 number of the word.  Answer: 1: there are others to tell.
local p, other, last = KEYS[1], ARGV[1], tonumber(ARGV[2])
c('DEL', p)  -- as in settle
while true do
  local first = c('LINDEX', p .. OWED .. other, 0)
  if not first then
    c('SREM', p .. OWING, other)
    break
  end
  if read('>d', first) > last then break end
  c('LPOP', p .. OWED .. other)
end
return c('EXISTS', p .. OWING)
