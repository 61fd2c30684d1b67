-- Write or delete a rule if its version is still the expected one.
-- KEYS: the home of limits.  ARGV: 1 name, 2 expected version ('': there must be none), 3 '1' .. rule and state, or '0'
-- Answer: the new version, 0 for a deleted one, -1: it has another version.
local g, name = KEYS[1], ARGV[1]
local known = c('HGET', g .. RULES, name)
local version = known and format('%.0f', (read('>d', known))) or ''
if version ~= ARGV[2] then return -1 end
c('DEL', g)  -- as in settle: an operator must be able to hold jobs back on a full server
-- One counter for all: a version is never used again.
local fresh = c('HINCRBY', g .. COUNTERS, 'version', 1)
if ARGV[3] == '0' then
  c('HDEL', g .. RULES, name)
  fresh = 0
else
  c('HSET', g .. RULES, name, pack('>d', fresh) .. sub(ARGV[3], 2))
end
local changed = {}
for _, key in ipairs(c('SMEMBERS', g .. PARKING_KEYS)) do
  local own = byte(key) == byte(NEVER) and sub(key, 2) or key
  if own == name or match(own, '^([^:]*)') == name then changed[#changed + 1] = key end
end
may_open(g, changed)
return fresh
