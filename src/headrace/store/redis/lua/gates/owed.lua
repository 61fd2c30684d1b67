-- On a cluster: what this queue is to tell others. Reads only.
-- Answer: {prefix of a queue, words…}…, a few of each.
local p, answer = KEYS[1], {}
for _, other in ipairs(c('SRANDMEMBER', p .. OWING, 10)) do
  answer[#answer + 1] = {other, unpack(c('LRANGE', p .. OWED .. other, 0, 49))}
end
return answer
