-- The steps of a job. Reads only.
-- ARGV: 1 id.  Answer: nothing: this queue does not have the job; else its steps, each with the number of those before it.
local p = KEYS[1]
if not where(p, ARGV[1]) then return false end
return c('HVALS', p .. JOURNAL .. ARGV[1])
