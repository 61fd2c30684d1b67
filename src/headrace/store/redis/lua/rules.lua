-- Everything that claims go by besides the jobs. Reads only.
-- KEYS: the home of limits.  Answer: {version of it all, rules, pauses of tenants}, the two as HGETALL gives them.
local g = KEYS[1]
return {c('HGET', g .. COUNTERS, 'version') or '0', c('HGETALL', g .. RULES), c('HGETALL', g .. PAUSED_TENANTS)}
