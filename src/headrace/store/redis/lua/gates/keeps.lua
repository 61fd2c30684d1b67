-- On a cluster: which of these gates keep their members. Reads only.
-- ARGV: ids.  Answer: 1 or 0 for each
local g, answer = home(KEYS[1]), {}
for a = 1, #ARGV do answer[a] = keeps(g, ARGV[a]) and 1 or 0 end
return answer
